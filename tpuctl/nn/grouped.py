"""Grouped matrix products: rows sorted by group, each group times a weight of its own.

On TPU the Pallas kernels that jax ships (``megablox``), which do the work of the rows there are. XLA has no such
product: ``lax.ragged_dot``, which stands in elsewhere, multiplies every row by every group's weight and masks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

_ROWS_PER_TILE = 512
_TILE_BYTES = 2048
_LANES = 128


@jax.custom_vjp
def grouped(x: Float[Array, "n d"], weights: Float[Array, "e d f"], sizes: Int[Array, " e"]) -> Float[Array, "n f"]:
    """From the residual stream: the first ``sizes[0]`` rows times the first weight, and so on.

    With gradients of its own for the reason ``layers.project`` has: a gathered weight is used as it lies.
    """
    return _product(x, weights, sizes, transposed=False)


@jax.custom_vjp
def grouped_back(
    x: Float[Array, "n f"], weights: Float[Array, "e d f"], sizes: Int[Array, " e"]
) -> Float[Array, "n d"]:
    """Back to the residual stream: each group of rows times the transpose of its weight."""
    return _product(x, weights, sizes, transposed=True)


def _grouped_backward(saved: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, Any]:
    x, weights, sizes = saved
    return _product(d_out, weights, sizes, transposed=True), _outer_sums(x, d_out, sizes), _no_gradient(sizes)


def _grouped_back_backward(saved: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, Any]:
    x, weights, sizes = saved
    return _product(d_out, weights, sizes, transposed=False), _outer_sums(d_out, x, sizes), _no_gradient(sizes)


def _no_gradient(sizes: Array) -> np.ndarray:
    return np.zeros(sizes.shape, jax.dtypes.float0)


# The forward rules call what lies under the wrapper, so that a rematerialisation policy sees it.
grouped.defvjp(
    lambda x, weights, sizes: (_product(x, weights, sizes, transposed=False), (x, weights, sizes)), _grouped_backward
)
grouped_back.defvjp(
    lambda x, weights, sizes: (_product(x, weights, sizes, transposed=True), (x, weights, sizes)),
    _grouped_back_backward,
)


def _product(x: Array, weights: Array, sizes: Array, *, transposed: bool) -> Array:
    product: Array = lax.platform_dependent(
        x,
        weights,
        sizes,
        tpu=functools.partial(product_kernel, transposed=transposed),
        default=functools.partial(_plain_product, transposed=transposed),
    )
    return product


def _outer_sums(x: Array, y: Array, sizes: Array) -> Float[Array, "e d f"]:
    """For each group the sum over its rows of outer products: a weight's gradient."""
    sums: Array = lax.platform_dependent(x, y, sizes, tpu=outer_sums_kernel, default=_plain_outer_sums)
    return sums


def product_kernel(x: Array, weights: Array, sizes: Array, *, transposed: bool, interpret: bool = False) -> Array:
    """The product on TPU; ``transposed`` weights lead back to the residual stream."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm  # Pallas is for those who have experts

    rows = _whole_tiles(x)
    inside, outside = weights.shape[:0:-1] if transposed else weights.shape[1:]
    tiling = _tiling(rows, inside, outside)
    out: Array = gmm(rows, weights, sizes, x.dtype, tiling, transpose_rhs=transposed, interpret=interpret)
    return out[: x.shape[0]]


def outer_sums_kernel(x: Array, y: Array, sizes: Array, *, interpret: bool = False) -> Array:
    """The sums of outer products on TPU."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    rows, others = _whole_tiles(x), _whole_tiles(y)
    tiling = _tiling(rows, x.shape[1], y.shape[1])
    sums: Array = tgmm(rows.swapaxes(0, 1), others, sizes, x.dtype, tiling, interpret=interpret)
    return sums


def _whole_tiles(x: Array) -> Array:
    """With rows of no group behind, so that the kernel's tiles of rows are full."""
    tile = _ROWS_PER_TILE if x.shape[0] >= _ROWS_PER_TILE else _LANES
    return jnp.pad(x, ((0, -x.shape[0] % tile), (0, 0)))


def _tiling(rows: Array, inside: int, outside: int) -> tuple[int, int, int]:
    widest = _TILE_BYTES // rows.dtype.itemsize
    fitting = [min(widest, -(-size // _LANES) * _LANES) for size in (inside, outside)]
    return min(_ROWS_PER_TILE, rows.shape[0]), fitting[0], fitting[1]


def _plain_product(x: Array, weights: Array, sizes: Array, *, transposed: bool) -> Array:
    contracting = 2 if transposed else 1
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (contracting,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    return lax.ragged_dot_general(x, weights, sizes, dimensions)


def _plain_outer_sums(x: Array, y: Array, sizes: Array) -> Array:
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(x, y, sizes, dimensions)
