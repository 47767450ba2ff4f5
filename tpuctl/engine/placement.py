"""Weights where and how the engine wants them: cast, sharded over ``tensor``, laid out for the device's products."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from tpuctl.mesh import named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree, init_params, logical_axes

_BACK = ("out", "down")  # used transposed as they are: see ``nn.layers.project_back``


def place(spec: ModelSpec, params: ParamTree, *, mesh: Mesh, dtype: Any) -> ParamTree:
    """Each weight in ``dtype``, in shards by its logical axes.

    Raises:
        MeshError: A dimension does not divide over the mesh.
    """

    def placed(leaf: Any, names: tuple[str, ...]) -> Array:
        array: Array = jax.device_put(jnp.asarray(leaf, dtype), named_sharding(mesh, names, shape=leaf.shape))
        return array

    axes = logical_axes(spec, tensor=mesh.shape["tensor"])
    tree: ParamTree = jax.tree.map(lambda names, leaf: placed(leaf, names), axes, params, is_leaf=_is_axes)
    return tree


def unstacked(spec: ModelSpec, params: ParamTree) -> ParamTree:
    """Every layer's weights as arrays of their own, f32 matrices with the contracted dimension last.

    For XLA on CPU: a layer cut out of the stack would be copied before each product, three times the traffic of a
    product with one row, and f32 products are fastest when both sides are contracted along their last dimension.
    (A transposed bf16 matrix it would turn into f32 for each product.) ``stacked`` undoes this inside the jitted
    step, where it costs nothing.
    """
    axes = logical_axes(spec)

    def separate(path: tuple[Any, ...], names: tuple[str, ...], leaf: Array) -> list[Any]:
        flat = leaf.dtype == jnp.float32 and names[1] == "embed" and path[-1].key not in _BACK
        return [_flat(leaf[i]) if flat else leaf[i] for i in range(leaf.shape[0])]

    layers = jax.tree_util.tree_map_with_path(separate, axes["layers"], params["layers"], is_leaf=_is_axes)
    wide = "head" in params and params["head"].dtype == jnp.float32
    head = {"head": _flat(params["head"])} if wide else {}
    return params | head | {"layers": layers}


def stacked(separate: ParamTree, *, like: ParamTree) -> ParamTree:
    """The tree that ``unstacked`` was made from; ``like`` has its shapes."""
    layers = jax.tree.map(
        lambda shape, parts: jnp.stack([_shaped(part, shape.shape[1:]) for part in parts]),
        like["layers"],
        separate["layers"],
    )
    head = {"head": _shaped(separate["head"], like["head"].shape)} if "head" in separate else {}
    return separate | head | {"layers": layers}


@functools.cache
def param_shapes(spec: ModelSpec) -> ParamTree:
    """Of a model's parameters, without making them."""
    tree: ParamTree = jax.eval_shape(lambda: init_params(spec, jax.random.key(0)))
    return tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class _Flat:
    """A weight stored as ``[columns, d]``."""

    matrix: Array


def _flat(weight: Array) -> _Flat:
    matrix = weight.reshape(weight.shape[0], -1).T
    return _Flat(matrix=jax.device_put(np.ascontiguousarray(matrix), weight.sharding))


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


def _shaped(part: Any, shape: tuple[int, ...]) -> Array:
    return part.matrix.T.reshape(shape) if isinstance(part, _Flat) else part
