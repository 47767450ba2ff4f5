"""Weights of a model, counted from its spec."""

from __future__ import annotations

import math

from tpuctl.modelspec.layout import parameters
from tpuctl.modelspec.spec import ModelSpec


def num_layer_parameters(spec: ModelSpec) -> int:
    """Weights of one decoder layer; of the largest, where some have experts and others an MLP."""
    sizes = [0] * spec.num_layers
    for parameter in parameters(spec).values():
        for layer in parameter.layers or ():
            sizes[layer] += math.prod(parameter.shape)
    return max(sizes)


def num_parameters(spec: ModelSpec) -> int:
    """Weights of the whole model; a tied embedding counts once."""
    return sum(parameter.size for parameter in parameters(spec).values())
