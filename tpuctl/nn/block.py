"""One layer of the decoder: attention, then an MLP or experts, each on the normalised input and added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.adapter import Adapting, adapted, adapters_of
from tpuctl.nn.attention import Attend, AttentionKernel, LayerView
from tpuctl.nn.experts import Experts
from tpuctl.nn.layers import Norm, ParamMaker, biased, dropout, folded, project, project_back
from tpuctl.nn.mlp import MLP
from tpuctl.nn.partition import WHOLE, Partition
from tpuctl.nn.rotary import Rotary
from tpuctl.plan.train_schema import RematPolicy
from tpuctl.plan.weights_schema import LoraPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOptions:
    """How the decoder runs: nothing here changes what it computes, but for dropout and each token's choice of adapters.

    ``dropout`` is on the residual branches, ``adapter_dropout`` on what goes into adapters. ``dropout_keys``: one per
    row, or ``None`` for neither. ``adapter_ranks`` as ``Adapting.ranks``. ``kernel`` is for attention within rows only.
    """

    kernel: AttentionKernel = "reference"
    remat: RematPolicy = "none"
    dropout: float = 0.0
    adapter_dropout: float = 0.0
    dropout_keys: Key[Array, " b"] | None = None
    adapter_ranks: Bool[Array, "b s rank"] | None = None
    partition: Partition = WHOLE
    unroll: bool = False
    """Whether the layers stand one after the other in the program, instead of as one that runs many times."""

    @property
    def adapting(self) -> Adapting:
        """What of this adapters need."""
        return Adapting(
            partition=self.partition, dropout=self.adapter_dropout, keys=self.dropout_keys, ranks=self.adapter_ranks
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a layer needs beside its parameters and its input. ``options`` hold this layer's dropout keys."""

    rotary: Rotary | None
    view: LayerView
    attend: Attend
    options: ForwardOptions


class Attention(nnx.Module):
    """Grouped-query self-attention."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker, lora: LoraPlan | None) -> None:
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
        self.adapters = adapters_of(self, "attention", lora, make=make)

    def __call__(self, x: Float[Array, "b s d"], state: Any, around: Surroundings) -> tuple[Array, Any]:
        """Partial sums over ``tensor``, for the caller's ``scatter_sequence`` to add up, yet without the last bias;
        and the next state."""
        adapting = around.options.adapting
        q, k, v = (self._heads(x, name, adapting) for name in ("query", "key", "value"))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if around.rotary is not None:
            q, k = around.rotary.rotate(q), around.rotary.rotate(k)
        scaled = q * jnp.asarray(self.scale, q.dtype)
        mixed, state = around.attend(scaled, k, v, layer=around.view, state=state)
        out = project_back(mixed, adapting.partition.weight(self.out))
        return adapted(out, mixed, getattr(self.adapters, "out", None), adapting), state

    def _heads(self, x: Array, name: str, adapting: Adapting) -> Array:
        part, kv_heads = adapting.partition, self.num_kv_heads
        heads = project(x, part.weight(getattr(self, name), kv_heads=kv_heads))
        heads = adapted(heads, x, getattr(self.adapters, name, None), adapting, kv_heads=kv_heads)
        bias = getattr(self, f"{name}_bias")
        return heads if bias is None else biased(heads, part.weight(bias, kv_heads=kv_heads))


class Block(nnx.Module):
    """One layer. In a model with layers of both kinds MLPs and experts are each stacked for layers of their own."""

    def __init__(self, spec: ModelSpec, *, make: ParamMaker, lora: LoraPlan | None = None) -> None:
        out_std = (2 * spec.num_layers) ** -0.5  # keeps the residual stream's variance flat in depth (GPT-2)
        mlps, experts = len(spec.mlp_layers), len(spec.expert_layers)
        self.attention_norm = residual_norm(spec, make)
        self.attention = Attention(spec, out_std=out_std, make=make, lora=lora)
        self.attention_out_norm = residual_norm(spec, make) if spec.sandwich_norms else None
        self.mlp_norm = residual_norm(spec, make)
        self.mlp = MLP(spec, out_std=out_std, make=make.stacked(mlps), lora=lora) if mlps else None
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
            mixed = biased(part.scatter_sequence(self.mlp(entering, adapting=options.adapting)), self.mlp.down_bias)
        else:
            assert self.experts is not None
            mixed = part.scatter_sequence(self.experts(entering, partition=part))
        return x + _dropped(_normed(mixed, self.mlp_out_norm), options, site=1), state


def residual_norm(spec: ModelSpec, make: ParamMaker) -> Norm:
    """A norm over the residual stream."""
    return Norm(spec.hidden_size, epsilon=spec.norm_eps, make=make, kind=spec.norm, plus_one=spec.norm_plus_one)


def _head_norm(spec: ModelSpec, make: ParamMaker) -> Norm:
    return Norm(spec.head_dim, epsilon=spec.norm_eps, make=make, plus_one=spec.norm_plus_one)


def _normed(x: Array, norm: Norm | None) -> Array:
    return x if norm is None else norm(x)


def _dropped(x: Float[Array, "b s d"], options: ForwardOptions, *, site: int) -> Array:
    if options.dropout_keys is None or not options.dropout:
        return x
    keys = folded(options.dropout_keys, site)
    return dropout(x, rate=options.dropout, keys=keys, partition=options.partition)
