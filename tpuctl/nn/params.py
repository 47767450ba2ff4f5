"""Parameters as a nested dict of plain arrays, and the decoder made of them.

Training, checkpoints and weight files deal in the dict; the forward pass in the ``Decoder`` bound to it. Names are
the modules' attribute names (``layers/attention/query``); the arrays of all layers are stacked on a first axis.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Key

from tpuctl.mesh import named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import Decoder
from tpuctl.nn.quantised import quantised_axes, quantised_tree
from tpuctl.plan.weights_schema import LoraPlan, QuantisedDtype

_ADAPTERS = "adapters"

type ParamTree = dict[str, Any]


def init_params(spec: ModelSpec, key: Key[Array, ""], *, lora: LoraPlan | None = None) -> ParamTree:
    """New f32 parameters, a pure function of ``key``."""
    tree: ParamTree = nnx.to_pure_dict(nnx.state(Decoder(spec, key=key, lora=lora)))
    return tree


def bind(spec: ModelSpec, params: ParamTree, *, lora: LoraPlan | None = None) -> Decoder:
    """The decoder over these parameters (arrays or tracers, whole or one device's shards, of any dtype)."""
    graph, template = _template(spec, lora)
    state = jax.tree.map(lambda leaf: leaf, template)
    nnx.replace_by_pure_dict(state, params)
    decoder: Decoder = nnx.merge(graph, state)
    return decoder


def logical_axes(
    spec: ModelSpec, *, tensor: int = 1, lora: LoraPlan | None = None, quantised: QuantisedDtype | None = None
) -> ParamTree:
    """The tree with each parameter's logical axes in its place, a tuple of names.

    Key and value heads fewer than the ``tensor`` devices they are to be shared by are held whole by each of these.
    """
    _, template = _template(spec, lora)
    shared = spec.num_kv_heads < tensor and tensor % spec.num_kv_heads == 0
    axes: ParamTree = _axes(template, rename={"kv_heads": "shared_kv_heads"} if shared else {})
    return quantised_axes(axes) if quantised else axes


def param_shapes(
    spec: ModelSpec, *, lora: LoraPlan | None = None, quantised: QuantisedDtype | None = None
) -> ParamTree:
    """The tree with each parameter's shape in its place, in f32 where it is not quantised."""

    def made() -> ParamTree:
        params = init_params(spec, jax.random.key(0), lora=lora)
        return quantised_tree(params) if quantised else params

    shapes: ParamTree = jax.eval_shape(made)
    return shapes


def param_shardings(
    spec: ModelSpec, mesh: Mesh, *, lora: LoraPlan | None = None, quantised: QuantisedDtype | None = None
) -> ParamTree:
    """The tree with each parameter's sharding on the mesh in its place.

    Raises:
        MeshError: a dimension does not divide over the mesh.
    """

    def place(axes: tuple[str, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return named_sharding(mesh, axes, shape=leaf.shape)

    axes = logical_axes(spec, tensor=mesh.shape["tensor"], lora=lora, quantised=quantised)
    shapes = param_shapes(spec, lora=lora, quantised=quantised)
    tree: ParamTree = jax.tree.map(place, axes, shapes, is_leaf=lambda node: isinstance(node, tuple))
    return tree


def split_adapters(params: ParamTree) -> tuple[ParamTree, ParamTree]:
    """The adapters in a tree of parameters, and the weights they stand beside. Leaves may be anything."""
    adapters: ParamTree = {}
    weights: ParamTree = {}
    for name, child in params.items():
        if name == _ADAPTERS:
            adapters[name] = child
        elif isinstance(child, dict):
            inside, beside = split_adapters(child)
            adapters |= {name: inside} if inside else {}
            weights[name] = beside
        else:
            weights[name] = child
    return adapters, weights


def joined(left: ParamTree, right: ParamTree) -> ParamTree:
    """One tree of two that share no leaf; what ``split_adapters`` took apart."""
    tree = {**left, **right}
    for name in left.keys() & right.keys():
        tree[name] = joined(left[name], right[name])
    return tree


def _axes(node: Any, *, rename: dict[str, str]) -> Any:
    if isinstance(node, nnx.Variable):
        return tuple(rename.get(axis, axis) for axis in node.get_metadata("axes"))
    return {name: _axes(child, rename=rename) for name, child in node.items()}


@functools.cache
def _template(spec: ModelSpec, lora: LoraPlan | None) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Decoder(spec, key=jax.random.key(0), lora=lora)))
