"""One layer of the decoder: attention, then an MLP or experts, each on the normalised input and added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.attention import Attend, AttentionKernel, LayerView
from tpuctl.nn.experts import Experts
from tpuctl.nn.layers import MLP, Norm, ParamMaker, biased, dropout, project, project_back
from tpuctl.nn.partition import WHOLE, Partition
from tpuctl.nn.rotary import Rotary
from tpuctl.plan.schema import RematPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOptions:
    """How the decoder runs: nothing here changes what it computes, but for ``dropout``.

    ``dropout_keys``: one per row, or ``None`` for no dropout. ``kernel`` is for attention within rows only.
    """

    kernel: AttentionKernel = "reference"
    remat: RematPolicy = "none"
    dropout: float = 0.0
    dropout_keys: Key[Array, " b"] | None = None
    partition: Partition = WHOLE
    unroll: bool = False
    """Whether the layers stand one after the other in the program, instead of as one that runs many times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a layer needs beside its parameters and its input. ``options`` hold this layer's dropout keys."""

    rotary: Rotary | None
    view: LayerView
    attend: Attend
    options: ForwardOptions


class Attention(nnx.Module):
    """Grouped-query self-attention."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker) -> None:
        hidden, heads, kv_heads, dim = spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
        std = hidden**-0.5
        self.scale = dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self.num_kv_heads = kv_heads
        self.query = make.normal((hidden, heads, dim), ("embed", "heads", "head_dim"), std=std)
        self.key = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        self.value = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        out_axes = ("embed", "heads", "head_dim")
        self.out = make.normal((hidden, heads, dim), out_axes, std=out_std * (heads * dim) ** -0.5)
        self.query_bias = make.zeros((heads, dim), ("heads", "head_dim")) if spec.qkv_bias else None
        self.key_bias = make.zeros((kv_heads, dim), ("kv_heads", "head_dim")) if spec.qkv_bias else None
        self.value_bias = make.zeros((kv_heads, dim), ("kv_heads", "head_dim")) if spec.qkv_bias else None
        self.out_bias = make.zeros((hidden,), ("norm",)) if spec.attention_out_bias else None
        self.query_norm = _head_norm(spec, make) if spec.qk_norm else None
        self.key_norm = _head_norm(spec, make) if spec.qk_norm else None

    def __call__(self, x: Float[Array, "b s d"], state: Any, around: Surroundings) -> tuple[Array, Any]:
        """Partial sums over ``tensor``, for the caller's ``scatter_sequence`` to add up, yet without the last bias;
        and the next state."""
        part = around.options.partition
        q = self._heads(x, self.query, self.query_bias, part)
        k = self._heads(x, self.key, self.key_bias, part)
        v = self._heads(x, self.value, self.value_bias, part)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if around.rotary is not None:
            q, k = around.rotary.rotate(q), around.rotary.rotate(k)
        scaled = q * jnp.asarray(self.scale, q.dtype)
        mixed, state = around.attend(scaled, k, v, layer=around.view, state=state)
        return project_back(mixed, part.weight(self.out)), state

    def _heads(self, x: Array, weight: nnx.Param[Any], bias: nnx.Param[Any] | None, part: Partition) -> Array:
        heads = project(x, part.weight(weight, kv_heads=self.num_kv_heads))
        return heads if bias is None else biased(heads, part.weight(bias, kv_heads=self.num_kv_heads))


class Block(nnx.Module):
    """One layer. In a model with layers of both kinds MLPs and experts are each stacked for layers of their own."""

    def __init__(self, spec: ModelSpec, *, make: ParamMaker) -> None:
        out_std = (2 * spec.num_layers) ** -0.5  # keeps the residual stream's variance flat in depth (GPT-2)
        mlps, experts = len(spec.mlp_layers), len(spec.expert_layers)
        self.attention_norm = residual_norm(spec, make)
        self.attention = Attention(spec, out_std=out_std, make=make)
        self.attention_out_norm = residual_norm(spec, make) if spec.sandwich_norms else None
        self.mlp_norm = residual_norm(spec, make)
        self.mlp = MLP(spec, out_std=out_std, make=make.stacked(mlps)) if mlps else None
        self.experts = Experts(spec, out_std=out_std, make=make.stacked(experts)) if experts else None
        self.mlp_out_norm = residual_norm(spec, make) if spec.sandwich_norms else None

    def __call__(self, x: Float[Array, "b s d"], state: Any, around: Surroundings) -> tuple[Array, Any]:
        """The layer's output and the next state; ``x`` and the output are split along the sequence over ``tensor``."""
        options, part = around.options, around.options.partition
        attended, state = self.attention(part.gather_sequence(self.attention_norm(x)), state, around)
        attended = biased(part.scatter_sequence(attended), self.attention.out_bias)
        x = x + _dropped(_normed(attended, self.attention_out_norm), options, site=0)
        entering = part.gather_sequence(self.mlp_norm(x))
        if self.mlp is not None:
            mixed = biased(part.scatter_sequence(self.mlp(entering, partition=part)), self.mlp.down_bias)
        else:
            assert self.experts is not None
            mixed = part.scatter_sequence(self.experts(entering, partition=part))
        return x + _dropped(_normed(mixed, self.mlp_out_norm), options, site=1), state


def residual_norm(spec: ModelSpec, make: ParamMaker) -> Norm:
    """A norm over the residual stream."""
    return Norm(spec.hidden_size, epsilon=spec.norm_eps, make=make, kind=spec.norm, plus_one=spec.norm_plus_one)


def folded(keys: Any, number: Array | int) -> Any:
    """Each row's key, folded with a number; ``None`` stays ``None``."""
    return None if keys is None else jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)


def _head_norm(spec: ModelSpec, make: ParamMaker) -> Norm:
    return Norm(spec.head_dim, epsilon=spec.norm_eps, make=make, plus_one=spec.norm_plus_one)


def _normed(x: Array, norm: Norm | None) -> Array:
    return x if norm is None else norm(x)


def _dropped(x: Float[Array, "b s d"], options: ForwardOptions, *, site: int) -> Array:
    if options.dropout_keys is None or not options.dropout:
        return x
    keys = folded(options.dropout_keys, site)
    return dropout(x, rate=options.dropout, keys=keys, partition=options.partition)
