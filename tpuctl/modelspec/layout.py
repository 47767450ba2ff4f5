"""Every parameter of a model by name, with its shape: what the decoder holds, told without jax."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.modelspec.spec import ModelSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter: ``shape`` is that of one layer, ``layers`` those it is stacked for, ``None`` for it alone."""

    shape: tuple[int, ...]
    layers: tuple[int, ...] | None = None

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Its shape in the tree of parameters."""
        return self.shape if self.layers is None else (len(self.layers), *self.shape)

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.stacked_shape)


def parameters(spec: ModelSpec) -> dict[str, Parameter]:
    """All parameters, by their path in the tree of parameters, such as ``layers/attention/query``."""
    outside: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, spec.hidden_size)}
    if spec.positions == "learned":
        outside["position_embedding"] = (spec.max_positions, spec.hidden_size)
    if not spec.tied_embedding:
        outside["head"] = (spec.hidden_size, spec.vocab_size)
    outside |= _norm(spec, "final_norm")
    found = {path: Parameter(shape=shape) for path, shape in outside.items()}
    for layers, inside in _groups(spec):
        if layers:
            found |= {f"layers/{path}": Parameter(shape=shape, layers=layers) for path, shape in inside.items()}
    return found


def _groups(spec: ModelSpec) -> Iterator[tuple[tuple[int, ...], dict[str, tuple[int, ...]]]]:
    """Layers with what they all hold: attention in every one, then either an MLP or experts."""
    yield tuple(range(spec.num_layers)), {**_norms(spec), **_attention(spec)}
    yield spec.mlp_layers, _mlp(spec)
    yield spec.expert_layers, _experts(spec)


def _norms(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    names = ["attention_norm", "mlp_norm"]
    if spec.sandwich_norms:
        names += ["attention_out_norm", "mlp_out_norm"]
    return {path: shape for name in names for path, shape in _norm(spec, name).items()}


def _norm(spec: ModelSpec, name: str) -> dict[str, tuple[int, ...]]:
    scale: dict[str, tuple[int, ...]] = {f"{name}/scale": (spec.hidden_size,)}
    return scale if spec.norm == "rms" else {**scale, f"{name}/bias": (spec.hidden_size,)}


def _attention(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    heads, kv_heads = (spec.num_heads, spec.head_dim), (spec.num_kv_heads, spec.head_dim)
    inside = {"query": heads, "key": kv_heads, "value": kv_heads}
    found: dict[str, tuple[int, ...]] = {name: (spec.hidden_size, *shape) for name, shape in inside.items()}
    found["out"] = (spec.hidden_size, *heads)
    if spec.qkv_bias:
        found |= {f"{name}_bias": shape for name, shape in inside.items()}
    if spec.attention_out_bias:
        found["out_bias"] = (spec.hidden_size,)
    if spec.qk_norm:
        found |= {"query_norm/scale": (spec.head_dim,), "key_norm/scale": (spec.head_dim,)}
    return {f"attention/{name}": shape for name, shape in found.items()}


def _mlp(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    inward = ("gate", "up") if spec.mlp_gated else ("up",)
    found: dict[str, tuple[int, ...]] = dict.fromkeys((*inward, "down"), (spec.hidden_size, spec.mlp_size))
    if spec.mlp_bias:
        found |= {f"{name}_bias": (spec.mlp_size,) for name in inward} | {"down_bias": (spec.hidden_size,)}
    return {f"mlp/{name}": shape for name, shape in found.items()}


def _experts(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    if spec.experts is None:
        return {}
    each = (spec.experts.num_experts, spec.hidden_size, spec.experts.mlp_size)
    router = (spec.hidden_size, spec.experts.num_experts)
    return {"experts/router": router, "experts/gate": each, "experts/up": each, "experts/down": each}
