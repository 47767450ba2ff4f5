"""Routed experts in place of an MLP: every token goes to its experts, none is dropped, none is padded.

Tokens are sorted by expert and multiplied group by group (``lax.ragged_dot``). Over ``tensor`` each expert is split
like an MLP, so all devices route alike and their results are partial sums; there is no axis of experts yet.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Int

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.layers import ACTIVATIONS, ParamMaker
from tpuctl.nn.partition import Partition


class Experts(nnx.Module):
    """Gated MLPs of which a router picks ``experts_per_token`` for each token (Shazeer et al. 2017)."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker) -> None:
        assert spec.experts is not None
        self.spec = spec.experts
        self.activation = spec.activation
        hidden, count, inner = spec.hidden_size, spec.experts.num_experts, spec.experts.mlp_size
        shape, axes, std = (count, hidden, inner), ("experts", "embed", "mlp"), hidden**-0.5
        self.router = make.normal((hidden, count), ("embed", "experts"), std=std)
        self.gate = make.normal(shape, axes, std=std)
        self.up = make.normal(shape, axes, std=std)
        self.down = make.normal(shape, axes, std=out_std * inner**-0.5)

    def __call__(self, x: Float[Array, "b s d"], *, partition: Partition) -> Float[Array, "b s d"]:
        """Partial sums over ``tensor``, to be added up by the caller's ``scatter_sequence``."""
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self._route(rows, partition.weight(self.router))
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        sizes = jnp.bincount(chosen.reshape(-1), length=self.spec.num_experts).astype(jnp.int32)
        sorted_rows = rows[order // self.spec.experts_per_token]
        gate = grouped(sorted_rows, partition.weight(self.gate), sizes)
        up = grouped(sorted_rows, partition.weight(self.up), sizes)
        out = grouped_back(ACTIVATIONS[self.activation](gate) * up, partition.weight(self.down), sizes)
        back = out[jnp.argsort(order)].reshape(*chosen.shape, -1)
        mixed = jnp.einsum("nkd,nk->nd", back, shares, preferred_element_type=jnp.float32)
        return mixed.astype(x.dtype).reshape(x.shape)

    def _route(self, rows: Float[Array, "n d"], router: Float[Array, "d e"]) -> tuple[Array, Array]:
        """Of each token the shares of its experts, and their numbers; in f32, since a near tie decides for good."""
        wide = [x.astype(jnp.float32) for x in (rows, router)]
        probabilities = jax.nn.softmax(jnp.dot(*wide, precision=lax.Precision.HIGHEST), axis=-1)
        shares, chosen = lax.top_k(probabilities, self.spec.experts_per_token)
        if self.spec.renormalise:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        return shares, chosen


@jax.custom_vjp
def grouped(x: Float[Array, "n d"], weights: Float[Array, "e d f"], sizes: Int[Array, " e"]) -> Float[Array, "n f"]:
    """From the residual stream: the first ``sizes[0]`` rows times the first weight, and so on.

    With gradients of its own for the reason ``layers.project`` has: a gathered weight is used as it lies.
    """
    return _ragged(x, weights, sizes, contracting=1)


@jax.custom_vjp
def grouped_back(
    x: Float[Array, "n f"], weights: Float[Array, "e d f"], sizes: Int[Array, " e"]
) -> Float[Array, "n d"]:
    """Back to the residual stream: each group of rows times the transpose of its weight."""
    return _ragged(x, weights, sizes, contracting=2)


def _ragged(x: Array, weights: Array, sizes: Array, *, contracting: int) -> Array:
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (contracting,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    return lax.ragged_dot_general(x, weights, sizes, dimensions)


def _by_group(left: Float[Array, "n a"], right: Float[Array, "n b"], sizes: Int[Array, " e"]) -> Float[Array, "e a b"]:
    """The product over the rows of each group."""
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(left, right, sizes, dimensions)


def _grouped_backward(saved: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, Any]:
    x, weights, sizes = saved
    return _ragged(d_out, weights, sizes, contracting=2), _by_group(x, d_out, sizes), _no_gradient(sizes)


def _grouped_back_backward(saved: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, Any]:
    x, weights, sizes = saved
    return _ragged(d_out, weights, sizes, contracting=1), _by_group(d_out, x, sizes), _no_gradient(sizes)


def _no_gradient(sizes: Array) -> np.ndarray:
    return np.zeros(sizes.shape, jax.dtypes.float0)


# The forward rules call what lies under the wrapper, so that a rematerialisation policy sees it.
grouped.defvjp(
    lambda x, weights, sizes: (_ragged(x, weights, sizes, contracting=1), (x, weights, sizes)), _grouped_backward
)
grouped_back.defvjp(
    lambda x, weights, sizes: (_ragged(x, weights, sizes, contracting=2), (x, weights, sizes)), _grouped_back_backward
)
