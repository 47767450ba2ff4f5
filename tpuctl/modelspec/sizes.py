"""Weights of a model, counted from its spec."""

from __future__ import annotations

from tpuctl.modelspec.spec import ModelSpec


def num_layer_parameters(spec: ModelSpec) -> int:
    """Weights of one decoder layer: attention, SwiGLU and two norms."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = spec.hidden_size * (2 * queries + 2 * keys)
    return attention + 3 * spec.hidden_size * spec.mlp_size + 2 * spec.hidden_size


def num_parameters(spec: ModelSpec) -> int:
    """Weights of the whole model; a tied embedding counts once."""
    embeddings = 1 if spec.tied_embedding else 2
    outside = embeddings * spec.vocab_size * spec.hidden_size + spec.hidden_size
    return outside + spec.num_layers * num_layer_parameters(spec)
