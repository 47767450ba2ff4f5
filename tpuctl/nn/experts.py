"""Routed experts in place of an MLP: every token goes to its experts, none is dropped, none is padded.

Tokens are sorted by expert and multiplied group by group. Over ``tensor`` each expert is split like an MLP, so all
devices route alike and their results are partial sums; there is no axis of experts yet.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.grouped import grouped, grouped_back
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
