"""Rotary position embedding, in the half-split layout of the Llama weights, with the scalings of longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from tpuctl.modelspec import ModelSpec, RopeSpec

_UNSCALED = RopeSpec()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotary:
    """Cosines and sines of the rotary embedding, f32, made once per forward pass and shared by all layers."""

    cos: Float[Array, "b s 1 half"]
    sin: Float[Array, "b s 1 half"]

    def rotate(self, x: Float[Array, "b s h d"]) -> Float[Array, "b s h d"]:
        """Each head's halves turned by the position's angles, in the dtype of ``x``."""
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)


jax.tree_util.register_dataclass(Rotary)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRotaries:
    """The rotary embeddings of a model: ``local`` for local layers, where theirs differ."""

    everywhere: Rotary | None
    local: Rotary | None = None

    def of(self, is_local: Bool[Array, ""]) -> Rotary | None:
        """That of one layer; ``None`` where the model has learned positions instead."""
        if self.local is None:
            return self.everywhere
        chosen: Rotary = jax.tree.map(lambda a, b: jnp.where(is_local, a, b), self.local, self.everywhere)
        return chosen


def layer_rotaries(spec: ModelSpec, positions: Int[Array, "b s"]) -> LayerRotaries:
    """The embeddings of all layers at ``positions``. A local base of its own comes without scaling (Gemma 3)."""
    if spec.positions == "learned":
        return LayerRotaries(everywhere=None)
    everywhere = rotary(positions, head_dim=spec.head_dim, theta=spec.rope_theta, rope=spec.rope)
    if spec.local_rope_theta is None or not spec.local_layers:
        return LayerRotaries(everywhere=everywhere)
    local = rotary(positions, head_dim=spec.head_dim, theta=spec.local_rope_theta)
    return LayerRotaries(everywhere=everywhere, local=local)


def rotary(positions: Int[Array, "b s"], *, head_dim: int, theta: float, rope: RopeSpec = _UNSCALED) -> Rotary:
    """Rotary embedding at ``positions`` (Su et al. 2021)."""
    angles = positions[..., None, None].astype(jnp.float32) * _frequencies(head_dim, theta, rope)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if rope.scaling == "yarn":
        return Rotary(cos=cos * rope.attention_factor, sin=sin * rope.attention_factor)
    return Rotary(cos=cos, sin=sin)


def _frequencies(head_dim: int, theta: float, rope: RopeSpec) -> Float[Array, " half"]:
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    match rope.scaling:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _by_wavelength(frequencies, rope)
        case "yarn":
            return _by_dimension(frequencies, rope, theta=theta)
    return frequencies


def _by_wavelength(frequencies: Array, rope: RopeSpec) -> Array:
    """Long waves are stretched, short ones kept, those between blended by how often they fit the original length."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return _blended(frequencies, rope, kept=jnp.clip(kept, 0, 1))


def _by_dimension(frequencies: Array, rope: RopeSpec, *, theta: float) -> Array:
    """YaRN (Peng et al. 2023): as above, but the blend is linear in the dimension."""
    half = frequencies.shape[0]

    def dimension(turns: float) -> float:
        return half * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    width = high - low or 0.001  # a step where both ends fall together
    return _blended(frequencies, rope, kept=1 - jnp.clip((jnp.arange(half) - low) / width, 0, 1))


def _blended(frequencies: Array, rope: RopeSpec, *, kept: Array) -> Array:
    return frequencies * kept + frequencies / rope.factor * (1 - kept)
