"""Building blocks of the decoder: parameters with logical axes, RMSNorm, rotary embedding, SwiGLU, dropout.

Every parameter names its logical axes; where they lie is ``mesh.RULES``' business. Knows no model and no mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key

from tpuctl.nn.partition import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamMaker:
    """Makes parameters, stacked ``layers`` deep where that is set, so that a scan can run over them.

    ``keys`` are split off all at once: each further split would cost a tenth of a second of compile time.
    """

    keys: Iterator[Key[Array, ""]]
    layers: int | None = None

    def normal(self, shape: tuple[int, ...], axes: tuple[str, ...], *, std: float) -> nnx.Param[Any]:
        """A weight drawn from a normal distribution cut off at two standard deviations."""
        draw = jax.random.truncated_normal(next(self.keys), -2.0, 2.0, self._stacked(shape), jnp.float32)
        return nnx.Param(draw * std, axes=self._axes(axes))

    def ones(self, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param[Any]:
        """A scale that starts at one."""
        return nnx.Param(jnp.ones(self._stacked(shape), jnp.float32), axes=self._axes(axes))

    def _axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return axes if self.layers is None else ("layer", *axes)

    def _stacked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layers is None else (self.layers, *shape)


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation with a learned scale (Zhang & Sennrich 2019); statistics in f32."""

    def __init__(self, size: int, *, epsilon: float, make: ParamMaker) -> None:
        self.scale = make.ones((size,), ("norm",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """Normalised over the last dimension, in the dtype of ``x``."""
        wide = x.astype(jnp.float32)
        inverse = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return (wide * inverse * self.scale[...].astype(jnp.float32)).astype(x.dtype)


class SwiGLU(nnx.Module):
    """The gated MLP ``down(silu(gate x) · up x)`` (Shazeer 2020)."""

    def __init__(self, hidden: int, inner: int, *, out_std: float, make: ParamMaker) -> None:
        self.gate = make.normal((hidden, inner), ("embed", "mlp"), std=hidden**-0.5)
        self.up = make.normal((hidden, inner), ("embed", "mlp"), std=hidden**-0.5)
        self.down = make.normal((hidden, inner), ("embed", "mlp"), std=out_std * inner**-0.5)

    def __call__(self, x: Float[Array, "b s d"], *, partition: Partition) -> Float[Array, "b s d"]:
        """Partial sums over ``tensor``, to be added up by the caller's ``scatter_sequence``."""
        gate, up = project(x, partition.weight(self.gate)), project(x, partition.weight(self.up))
        return project_back(jax.nn.silu(gate) * up, partition.weight(self.down))


@jax.custom_vjp
def project(x: Float[Array, "b s d"], weight: Float[Array, d * outside]) -> Float[Array, "b s *outside"]:
    """From the residual stream: ``x`` times a weight.

    With gradients of its own: automatic ones ask for the cotangent transposed, and XLA's CPU compiler then fuses
    that transposition into whatever made the cotangent, at a tenth of the speed.
    """
    return _project(x, weight)


def _project(x: Array, weight: Array) -> Array:
    return (_rows(x) @ _matrix(weight)).reshape(*x.shape[:2], *weight.shape[1:])


def _project_backward(saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, weight = saved
    d_x = lax.dot_general(_rows(d_out), _matrix(weight), (((1,), (1,)), ((), ())))
    return d_x.reshape(x.shape), outer_sum(_rows(x), _rows(d_out)).reshape(weight.shape)


@jax.custom_vjp
def project_back(x: Float[Array, "b s *inside"], weight: Float[Array, d * inside]) -> Float[Array, "b s d"]:
    """Back to the residual stream: ``x`` times the transpose of a weight.

    All weights of a layer thus have the residual stream's dimension first: the one they are split along over
    ``fsdp``. Split along the last one, their shards would be padded to TPU's 128 lanes, and TPU's compiler has no
    reduce-scatter along it.
    """
    return _project_back(x, weight)


def _project_back(x: Array, weight: Array) -> Array:
    out = lax.dot_general(_rows(x), _matrix(weight), (((1,), (1,)), ((), ())))
    return out.reshape(*x.shape[:2], -1)


def _project_back_backward(saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, weight = saved
    d_x = _rows(d_out) @ _matrix(weight)
    return d_x.reshape(x.shape), outer_sum(_rows(d_out), _rows(x)).reshape(weight.shape)


# The forward rules call what lies under the wrapper, so that a rematerialisation policy sees a ``dot_general``.
project.defvjp(lambda x, weight: (_project(x, weight), (x, weight)), _project_backward)
project_back.defvjp(lambda x, weight: (_project_back(x, weight), (x, weight)), _project_back_backward)


def outer_sum(
    x: Float[Array, "rows d"], y: Float[Array, "rows e"], *, dtype: DTypeLike | None = None
) -> Float[Array, "d e"]:
    """The sum over rows of outer products: a weight's gradient. ``dtype`` is that of the result, else of ``x``.

    Summed over two dimensions instead of one where that is possible: XLA's CPU compiler then transposes ``x`` and
    has a fast bfloat16 product; summed over the first dimension alone it converts both to f32, at a fifth of the speed.
    """
    groups = 2 if x.shape[0] % 2 == 0 else 1
    split = [a.reshape(groups, -1, a.shape[1]) for a in (x, y)]
    total: Array = lax.dot_general(*split, (((0, 1), (0, 1)), ((), ())), preferred_element_type=dtype)
    return total


def _rows(x: Float[Array, "b s *inside"]) -> Float[Array, "rows columns"]:
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(weight: Float[Array, d * outside]) -> Float[Array, "d columns"]:
    return weight.reshape(weight.shape[0], -1)


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


def rotary(positions: Int[Array, "b s"], *, head_dim: int, theta: float) -> Rotary:
    """Rotary embedding at ``positions`` (Su et al. 2021, in the half-split layout of the Llama weights)."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return Rotary(cos=jnp.cos(angles), sin=jnp.sin(angles))


def dropout(
    x: Float[Array, "b s_shard d"], *, rate: float, keys: Key[Array, " b"], partition: Partition
) -> Float[Array, "b s_shard d"]:
    """``x`` with a share ``rate`` of its elements zeroed. One key per row, so a mask does not depend on the mesh."""
    shape = (x.shape[1] * partition.tensor.size, x.shape[2])
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, shape))(keys)
    return jnp.where(partition.sequence_shard(keep), x / jnp.asarray(1.0 - rate, x.dtype), 0)
