"""Gather and reduce-scatter along a mesh axis, each the other's transpose, ring by ring.

For use inside ``jax.shard_map``. A mesh axis may span several dimensions of the chips' torus, and TPU's compiler
emits a true reduce-scatter only within one of them: over more it all-reduces the whole array and keeps a part, twice
the bytes. So a reduce-scatter is written as one per ring, the outermost first, which leaves every device the same
shard. Gathers need no such care.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint

from tpuctl.mesh import Axis


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(x: Array, axis: Axis, dimension: int) -> Array:
    """The shards of all devices on ``axis``, joined along ``dimension``."""
    return _gather(x, axis, dimension)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def scatter(x: Array, axis: Axis, dimension: int) -> Array:
    """The sum over ``axis``, of which each device keeps its part along ``dimension``."""
    return _scatter(x, axis, dimension)


def _gather(x: Array, axis: Axis, dimension: int) -> Array:
    if axis.size == 1:
        return x
    whole: Array = lax.all_gather(x, axis.name, axis=dimension, tiled=True)
    return whole


def _scatter(x: Array, axis: Axis, dimension: int) -> Array:
    if axis.size == 1:
        return x
    if dimension == x.ndim - 1:
        part: Array = jnp.swapaxes(_scatter(jnp.swapaxes(x, -1, -2), axis, dimension - 1), -1, -2)
        return part
    # TPU's compiler has a reduce-scatter along the last dimension but one in memory only. A matrix product's result
    # may come in any order, so the order is asked for.
    flat = x.reshape(*x.shape[: dimension + 1], -1)
    flat = with_layout_constraint(flat, Layout(major_to_minor=tuple(range(flat.ndim))))
    for stage in range(len(axis.rings)):
        groups = _groups(axis.rings, stage)
        flat = lax.psum_scatter(flat, axis.name, scatter_dimension=dimension, axis_index_groups=groups, tiled=True)
    mine: Array = flat.reshape(*x.shape[:dimension], -1, *x.shape[dimension + 1 :])
    return mine


def _groups(rings: tuple[int, ...], stage: int) -> list[list[int]] | None:
    if len(rings) == 1:
        return None
    indices = np.arange(math.prod(rings)).reshape(rings)
    groups: list[list[int]] = np.moveaxis(indices, stage, -1).reshape(-1, rings[stage]).tolist()
    return groups


# The forward rules call what lies under the wrapper, so that a rematerialisation policy sees an ``all_gather``.
gather.defvjp(
    lambda x, axis, dimension: (_gather(x, axis, dimension), None),
    lambda axis, dimension, _, d_whole: (scatter(d_whole, axis, dimension),),
)
scatter.defvjp(
    lambda x, axis, dimension: (_scatter(x, axis, dimension), None),
    lambda axis, dimension, _, d_part: (gather(d_part, axis, dimension),),
)
