"""A weight as int8 with a scale for each output channel: half of bfloat16 to hold, and to read for each product.

Symmetric, and of weights alone: products are taken in the activations' dtype. On TPU the conversion is part of the
product, so that only the int8 crosses from HBM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int8

from tpuctl.modelspec.quantised import summed_axes
from tpuctl.nn.transposed import Transposed

_LARGEST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """``values · scale``, in place of a weight; not to be trained.

    ``scale`` has the dimensions of the weight, those that products sum over of size 1. In a tree that describes
    parameters both hold what describes them: axes, shapes or shardings.
    """

    values: Int8[Array, "*shape"] | Transposed
    scale: Float32[Array, "*channels"]

    def times(self, x: Array, product: Callable[[Array, Any], Array], *, rows: int) -> Array:
        """``product(x, weight)``, whose first ``rows`` dimensions are those of ``x``."""
        out = product(x, jax.tree.map(lambda values: values.astype(x.dtype), self.values))
        return (out * self.scale.reshape(out.shape[rows:])).astype(out.dtype)


def quantise(weight: Array, *, summed: tuple[int, ...]) -> Quantised:
    """A weight rounded to 255 steps for each place along the axes that are not ``summed``.

    No value is off by more than half a step, 1/254 of the largest in its channel.
    """
    wide = weight.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=summed, keepdims=True)
    # A channel of zeros has a scale, too.
    scale = jnp.maximum(largest / _LARGEST, np.finfo(np.float32).tiny)
    return Quantised(values=jnp.round(wide / scale).astype(jnp.int8), scale=scale)


def quantised_tree(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with those quantised that may be."""
    return _changed(params, lambda leaf, summed: quantise(leaf, summed=summed))


def dequantised_tree(params: dict[str, Any], *, dtype: Any) -> dict[str, Any]:
    """Parameters as arrays again, the quantised ones with the values that products take them for."""

    def plain(leaf: Any) -> Any:
        return (leaf.values * leaf.scale).astype(dtype) if is_quantised(leaf) else leaf

    tree: dict[str, Any] = jax.tree.map(plain, params, is_leaf=is_quantised)
    return tree


def quantised_axes(axes: dict[str, Any]) -> dict[str, Any]:
    """A tree of logical axes as it is for ``quantised_tree``. What is summed over has one place for all devices."""

    def apart(names: tuple[str, ...], summed: tuple[int, ...]) -> Quantised:
        kept: Any = tuple(None if at in summed else name for at, name in enumerate(names))
        values: Any = names
        return Quantised(values=values, scale=kept)

    return _changed(axes, apart)


def is_quantised(node: Any) -> bool:
    """Whether a node of a tree is a quantised weight, or describes one."""
    return isinstance(node, Quantised)


def _changed(tree: dict[str, Any], change: Callable[[Any, tuple[int, ...]], Quantised]) -> dict[str, Any]:
    def changed(path: Any, leaf: Any) -> Any:
        summed = summed_axes(jax.tree_util.keystr(path, simple=True, separator="/"))
        return leaf if summed is None else change(leaf, summed)

    made: dict[str, Any] = jax.tree_util.tree_map_with_path(changed, tree, is_leaf=lambda node: isinstance(node, tuple))
    return made
