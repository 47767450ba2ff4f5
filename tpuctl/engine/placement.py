"""Weights where and how the engine wants them: cast, sharded over ``tensor``, laid out for the device's products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from tpuctl.mesh import named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree
from tpuctl.nn.quantised import Quantised, is_quantised
from tpuctl.nn.transposed import Transposed

_ENTERING = ("query", "key", "value", "gate", "up", "b")  # weights of ``nn.layers.project``
_MOST_LAYERS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGroup:
    """Consecutive layers of a model, as a model of their own: groups that are alike share one compiled program."""

    spec: ModelSpec
    first: int


def place(params: ParamTree, axes: ParamTree, *, mesh: Mesh, dtype: Any) -> ParamTree:
    """Each weight in ``dtype``, in shards by its logical axes. A quantised one keeps its own dtypes.

    Raises:
        MeshError: A dimension does not divide over the mesh.
    """

    def sharded(names: tuple[str, ...], leaf: Any) -> Array:
        array: Array = jax.device_put(leaf, named_sharding(mesh, names, shape=leaf.shape))
        return array

    def placed(names: Any, leaf: Any) -> Any:
        if isinstance(names, Quantised):
            return jax.tree.map(sharded, names, leaf, is_leaf=_is_axes)
        return sharded(names, jnp.asarray(leaf, dtype))

    tree: ParamTree = jax.tree.map(placed, axes, params, is_leaf=lambda node: _is_axes(node) or is_quantised(node))
    return tree


def layer_groups(spec: ModelSpec) -> list[LayerGroup]:
    """The layers of a model in groups of up to six, of one size if they divide."""
    count = spec.num_layers
    size = next((size for size in range(_MOST_LAYERS, 2, -1) if count % size == 0), _MOST_LAYERS)
    return [_group(spec, first, min(first + size, count)) for first in range(0, count, size)]


def in_groups(spec: ModelSpec, params: ParamTree) -> ParamTree:
    """``groups`` of layers with every layer's weights as arrays of their own, and all other weights as ``ends``.

    For XLA on CPU: a layer cut out of a stack would be copied before each product, three times the traffic of a
    product with one row. ``stacked`` undoes this inside a jitted program, where it costs nothing.
    """
    ends = {name: leaf for name, leaf in params.items() if name != "layers"}
    if "head" in ends:
        ends["head"] = _transposed(ends["head"])
    return {"ends": ends, "groups": [_layers_of(spec, params["layers"], group) for group in layer_groups(spec)]}


def stacked(group: ParamTree) -> ParamTree:
    """Weights of a group's layers, as a decoder of ``LayerGroup.spec`` has them."""

    def stack(layers: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)

    tree: ParamTree = jax.tree.map(stack, group, is_leaf=lambda node: isinstance(node, list))
    return tree


def _group(spec: ModelSpec, first: int, last: int) -> LayerGroup:
    def inside(layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer - first for layer in layers if first <= layer < last)

    experts = spec.experts and replace(spec.experts, dense_layers=inside(spec.experts.dense_layers))
    own = replace(spec, num_layers=last - first, local_layers=inside(spec.local_layers), experts=experts)
    return LayerGroup(spec=own, first=first)


def _layers_of(spec: ModelSpec, layers: ParamTree, group: LayerGroup) -> ParamTree:
    """A list in place of each stack. MLPs and experts are stacked for the layers that have them."""
    within = range(group.first, group.first + group.spec.num_layers)
    stacks = {"mlp": spec.mlp_layers, "experts": spec.expert_layers}

    def cut(path: tuple[Any, ...], leaf: Any) -> list[Any]:
        places = [i for i, layer in enumerate(stacks.get(path[0].key, range(spec.num_layers))) if layer in within]
        entering = path[0].key in ("attention", "mlp") and path[-1].key in _ENTERING
        own = [jax.tree.map(lambda stack, i=i: stack[i], leaf) for i in places]
        return [_transposed(weight) for weight in own] if entering else own

    cut_layers: ParamTree = jax.tree_util.tree_map_with_path(cut, layers, is_leaf=is_quantised)
    missing = [name for name, owners in stacks.items() if not set(owners) & set(within)]
    return {name: node for name, node in cut_layers.items() if name not in missing}


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple)


def _transposed(weight: Any) -> Any:
    if isinstance(weight, Quantised):
        return replace(weight, values=_transposed(weight.values))
    matrix = np.asarray(weight).reshape(weight.shape[0], -1).T
    return Transposed(
        matrix=jax.device_put(np.ascontiguousarray(matrix), weight.sharding), outside=tuple(weight.shape[1:])
    )
