"""Model architectures as plain integers. No jax here: the control side sizes models with it.

The decoder in ``nn`` is configured by a ``ModelSpec`` and by nothing else; a new family is a new field in it.
"""

from tpuctl.modelspec.presets import PRESETS
from tpuctl.modelspec.sizes import num_layer_parameters, num_parameters
from tpuctl.modelspec.spec import ExpertSpec, ModelSpec, RopeSpec

__all__ = ["PRESETS", "ExpertSpec", "ModelSpec", "RopeSpec", "num_layer_parameters", "num_parameters"]
