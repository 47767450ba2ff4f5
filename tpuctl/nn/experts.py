"""Routed experts in place of an MLP: every token goes to its experts, none is dropped, none is padded.

Tokens are sorted by expert and multiplied group by group. Over ``tensor`` each expert is split like an MLP, so all
devices route alike and their results are partial sums. Over ``expert`` each device holds some of the experts, and works
on whatever the tokens of all of them want of these (``dealt``).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.dealt import ExpertWeights, Routes, dealt, sorted_outputs
from tpuctl.nn.layers import ParamMaker
from tpuctl.nn.partition import Partition


class Experts(nnx.Module):
    """Gated MLPs of which a router picks ``experts_per_token`` for each token (Shazeer et al. 2017)."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker) -> None:
        assert spec.experts is not None
        self.spec = spec.experts
        self.activation = spec.activation
        hidden, count, inner = spec.hidden_size, spec.experts.num_experts, spec.experts.mlp_size
        shape, axes, std = (count, hidden, inner), ("experts", "expert_embed", "mlp"), hidden**-0.5
        self.router = make.normal((hidden, count), ("embed", "router"), std=std)
        self.gate = make.normal(shape, axes, std=std)
        self.up = make.normal(shape, axes, std=std)
        self.down = make.normal(shape, axes, std=out_std * inner**-0.5)

    def __call__(self, x: Float[Array, "b s d"], *, partition: Partition) -> Float[Array, "b s d"]:
        """Partial sums over ``tensor``, to be added up by the caller's ``scatter_sequence``."""
        rows = x.reshape(-1, x.shape[-1])
        routes = self._route(rows, partition.weight(self.router))
        weights = ExpertWeights(*(partition.weight(each) for each in (self.gate, self.up, self.down)))
        if partition.expert.size > 1:
            mixed = dealt(rows, routes, weights, activation=self.activation, axis=partition.expert)
        else:
            mixed = self._mixed(rows, routes, weights)
        return mixed.reshape(x.shape)

    def _mixed(self, rows: Float[Array, "n d"], routes: Routes, weights: ExpertWeights) -> Float[Array, "n d"]:
        """The mixtures, from experts that are all at hand."""
        chosen = routes.chosen.reshape(-1)
        order = jnp.argsort(chosen, stable=True)
        sizes = jnp.bincount(chosen, length=self.spec.num_experts).astype(jnp.int32)
        sorted_rows = rows[order // self.spec.experts_per_token]
        out = sorted_outputs(sorted_rows, weights, sizes, activation=self.activation)
        back = out[jnp.argsort(order)].reshape(*routes.chosen.shape, -1)
        return jnp.einsum("nkd,nk->nd", back, routes.shares, preferred_element_type=jnp.float32).astype(rows.dtype)

    def _route(self, rows: Float[Array, "n d"], router: Float[Array, "d e"]) -> Routes:
        """In f32, since a near tie decides for good."""
        wide = [x.astype(jnp.float32) for x in (rows, router)]
        probabilities = jax.nn.softmax(jnp.dot(*wide, precision=lax.Precision.HIGHEST), axis=-1)
        shares, chosen = lax.top_k(probabilities, self.spec.experts_per_token)
        if self.spec.renormalise:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        return Routes(shares, chosen)
