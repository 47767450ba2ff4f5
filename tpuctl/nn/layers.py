"""Building blocks of the decoder: parameters with logical axes, norms, projections, dropout.

Every parameter names its logical axes; where they lie is ``mesh.RULES``' business. Knows no mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from tpuctl.modelspec.spec import Activation, NormKind
from tpuctl.nn.partition import Partition
from tpuctl.nn.quantised import Quantised
from tpuctl.nn.transposed import Transposed


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamMaker:
    """Makes parameters, stacked ``layers`` deep where that is set, so that a scan can run over them.

    ``keys`` are split off all at once: each further split would cost a tenth of a second of compile time.
    """

    keys: Iterator[Key[Array, ""]]
    layers: int | None = None

    def normal(self, shape: tuple[int, ...], axes: tuple[str, ...], *, std: float) -> nnx.Param[Any]:
        """A weight drawn from a normal distribution cut off at two standard deviations."""
        draw = jax.random.truncated_normal(next(self.keys), -2.0, 2.0, self._shape(shape), jnp.float32)
        return nnx.Param(draw * std, axes=self._axes(axes))

    def uniform(self, shape: tuple[int, ...], axes: tuple[str, ...], *, bound: float) -> nnx.Param[Any]:
        """A weight drawn evenly from between ``-bound`` and ``bound``."""
        draw = jax.random.uniform(next(self.keys), self._shape(shape), jnp.float32, -bound, bound)
        return nnx.Param(draw, axes=self._axes(axes))

    def ones(self, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param[Any]:
        """A scale that starts at one."""
        return nnx.Param(jnp.ones(self._shape(shape), jnp.float32), axes=self._axes(axes))

    def zeros(self, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param[Any]:
        """A bias, or a scale that counts from one."""
        return nnx.Param(jnp.zeros(self._shape(shape), jnp.float32), axes=self._axes(axes))

    def stacked(self, layers: int) -> ParamMaker:
        """The same for so many layers."""
        return ParamMaker(keys=self.keys, layers=layers)

    def _axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return axes if self.layers is None else ("layer", *axes)

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layers is None else (self.layers, *shape)


class Norm(nnx.Module):
    """Normalisation with a learned scale over the last dimension; statistics in f32.

    ``rms`` divides by the root mean square (Zhang & Sennrich 2019), ``layer`` also subtracts the mean and adds a bias
    (Ba et al. 2016). With ``plus_one`` the scale is one plus its parameter.
    """

    def __init__(
        self, size: int, *, epsilon: float, make: ParamMaker, kind: NormKind = "rms", plus_one: bool = False
    ) -> None:
        self.scale = make.zeros((size,), ("norm",)) if plus_one else make.ones((size,), ("norm",))
        self.bias = make.zeros((size,), ("norm",)) if kind == "layer" else None
        self.epsilon = epsilon
        self.plus_one = plus_one

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """Normalised over the last dimension, in the dtype of ``x``."""
        wide = x.astype(jnp.float32)
        if self.bias is not None:
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        inverse = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        scale = self.scale[...].astype(jnp.float32)
        scaled = wide * inverse * (1.0 + scale if self.plus_one else scale)
        if self.bias is not None:
            scaled = scaled + self.bias[...].astype(jnp.float32)
        return scaled.astype(x.dtype)


ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def biased(x: Array, bias: nnx.Param[Any] | Array | None) -> Array:
    """``x`` and a bias where there is one, in the dtype of ``x``."""
    return x if bias is None else x + bias[...].astype(x.dtype)


@jax.custom_vjp
def project(
    x: Float[Array, "b s d"], weight: Float[Array, d * outside] | Transposed | Quantised
) -> Float[Array, "b s *outside"]:
    """From the residual stream: ``x`` times a weight.

    With gradients of its own: automatic ones ask for the cotangent transposed, and XLA's CPU compiler then fuses
    that transposition into whatever made the cotangent, at a tenth of the speed.
    """
    return _project(x, weight)


def _project(x: Array, weight: Array | Transposed | Quantised) -> Array:
    if isinstance(weight, Quantised):
        return weight.times(x, _project, rows=2)
    if isinstance(weight, Transposed):
        out = lax.dot_general(_rows(x), weight.matrix, (((1,), (1,)), ((), ())))
        return out.reshape(*x.shape[:2], *weight.outside)
    return (_rows(x) @ _matrix(weight)).reshape(*x.shape[:2], *weight.shape[1:])


def _project_backward(saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, weight = saved
    d_x = lax.dot_general(_rows(d_out), _matrix(weight), (((1,), (1,)), ((), ())))
    return d_x.reshape(x.shape), outer_sum(_rows(x), _rows(d_out)).reshape(weight.shape)


@jax.custom_vjp
def project_back(x: Float[Array, "b s *inside"], weight: Float[Array, d * inside] | Quantised) -> Float[Array, "b s d"]:
    """Back to the residual stream: ``x`` times the transpose of a weight.

    All weights of a layer thus have the residual stream's dimension first: the one they are split along over
    ``fsdp``. Split along the last one, their shards would be padded to TPU's 128 lanes, and TPU's compiler has no
    reduce-scatter along it.
    """
    return _project_back(x, weight)


def _project_back(x: Array, weight: Array | Quantised) -> Array:
    if isinstance(weight, Quantised):
        return weight.times(x, _project_back, rows=2)
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
    left, right = (a.reshape(groups, -1, a.shape[1]) for a in (x, y))
    total: Array = lax.dot_general(left, right, (((0, 1), (0, 1)), ((), ())), preferred_element_type=dtype)
    return total


def _rows(x: Float[Array, "b s *inside"]) -> Float[Array, "rows columns"]:
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(weight: Float[Array, d * outside]) -> Float[Array, "d columns"]:
    return weight.reshape(weight.shape[0], -1)


def dropout(
    x: Float[Array, "b s_shard d"], *, rate: float, keys: Key[Array, " b"], partition: Partition
) -> Float[Array, "b s_shard d"]:
    """``x`` with a share ``rate`` of its elements zeroed. One key per row, so a mask does not depend on the mesh."""
    shape = (x.shape[1] * partition.tensor.size, x.shape[2])
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, shape))(keys)
    return jnp.where(partition.sequence_shard(keep), x / jnp.asarray(1.0 - rate, x.dtype), 0)


def folded(keys: Any, number: Array | int) -> Any:
    """Each row's key, folded with a number; ``None`` stays ``None``."""
    return None if keys is None else jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
