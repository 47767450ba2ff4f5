"""Which parameters may be kept as whole numbers of eight bits, and what a model then weighs; told without jax.

The matrices of attention and MLP, and a head of its own. Not norms and biases, which are small; not the embedding,
whose rows are looked up; not routers, where a near tie decides for good. Experts are not either, as yet: the kernel
that multiplies by them takes floating point only.
"""

from __future__ import annotations

import math

from tpuctl.modelspec.layout import Parameter, parameters
from tpuctl.modelspec.spec import ModelSpec

SCALE_BYTES = 4

_SUMMED = {
    "head": (0,),
    "layers/attention/query": (1,),
    "layers/attention/key": (1,),
    "layers/attention/value": (1,),
    "layers/attention/out": (2, 3),
    "layers/mlp/gate": (1,),
    "layers/mlp/up": (1,),
    "layers/mlp/down": (2,),
}


def summed_axes(path: str) -> tuple[int, ...] | None:
    """Of a parameter that may be quantised the axes that products sum over, ``None`` for another.

    ``path`` and axes are those of the tree of parameters; along all other axes each place has a scale of its own.
    """
    return _SUMMED.get(path)


def weight_bytes(spec: ModelSpec, *, item_bytes: int, quantised: bool) -> int:
    """What the model's weights take, of ``item_bytes`` each where they are not quantised."""
    return sum(
        _quantised_bytes(parameter, axes)
        if quantised and (axes := summed_axes(path)) is not None
        else parameter.size * item_bytes
        for path, parameter in parameters(spec).items()
    )


def largest_quantised(spec: ModelSpec) -> int:
    """Numbers in the largest parameter that may be quantised, all layers together."""
    return max(parameter.size for path, parameter in parameters(spec).items() if path in _SUMMED)


def _quantised_bytes(parameter: Parameter, summed: tuple[int, ...]) -> int:
    scales = parameter.size // math.prod(parameter.stacked_shape[axis] for axis in summed)
    return parameter.size + SCALE_BYTES * scales
