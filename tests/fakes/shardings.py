"""Where a model's parameters lie on a mesh, for tests that load some without a plan."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from tpuctl.mesh import named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree, init_params, logical_axes


def param_shardings(spec: ModelSpec, mesh: Mesh) -> ParamTree:
    """A ``NamedSharding`` for each parameter."""
    tree: ParamTree = jax.tree.map(
        lambda axes, leaf: named_sharding(mesh, axes, shape=leaf.shape),
        logical_axes(spec, tensor=mesh.shape["tensor"]),
        jax.eval_shape(lambda: init_params(spec, jax.random.key(0))),
        is_leaf=lambda node: isinstance(node, tuple),
    )
    return tree
