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
from jaxtyping import Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import Decoder

type ParamTree = dict[str, Any]


def init_params(spec: ModelSpec, key: Key[Array, ""]) -> ParamTree:
    """New f32 parameters, a pure function of ``key``."""
    tree: ParamTree = nnx.to_pure_dict(nnx.state(Decoder(spec, key=key)))
    return tree


def bind(spec: ModelSpec, params: ParamTree) -> Decoder:
    """The decoder over these parameters (arrays or tracers, whole or one device's shards, of any dtype)."""
    graph, template = _template(spec)
    state = jax.tree.map(lambda leaf: leaf, template)
    nnx.replace_by_pure_dict(state, params)
    decoder: Decoder = nnx.merge(graph, state)
    return decoder


def logical_axes(spec: ModelSpec) -> ParamTree:
    """The tree with each parameter's logical axes in its place, a tuple of names."""
    _, template = _template(spec)
    axes: ParamTree = _axes(template)
    return axes


def _axes(node: Any) -> Any:
    if isinstance(node, nnx.Variable):
        return node.get_metadata("axes")
    return {name: _axes(child) for name, child in node.items()}


@functools.cache
def _template(spec: ModelSpec) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Decoder(spec, key=jax.random.key(0))))
