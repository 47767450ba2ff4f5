"""Model architectures as plain integers. No jax here: the control side sizes models with it.

The decoder in ``nn`` is configured by a ``ModelSpec`` and by nothing else; a new family is a new field here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embedding: bool = True
