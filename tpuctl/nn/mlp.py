"""The MLP of a layer."""

from __future__ import annotations

from flax import nnx
from jax import Array
from jaxtyping import Float

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.adapter import Adapting, adapted, adapters_of
from tpuctl.nn.layers import ACTIVATIONS, ParamMaker, biased, project, project_back
from tpuctl.plan.weights_schema import LoraPlan


class MLP(nnx.Module):
    """``down(act(up x))``, or gated ``down(act(gate x) · up x)`` (Shazeer 2020)."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker, lora: LoraPlan | None) -> None:
        hidden, inner = spec.hidden_size, spec.mlp_size
        shape, axes, std = (hidden, inner), ("embed", "mlp"), hidden**-0.5
        self.activation = spec.activation
        self.gate = make.normal(shape, axes, std=std) if spec.mlp_gated else None
        self.up = make.normal(shape, axes, std=std)
        self.down = make.normal(shape, axes, std=out_std * inner**-0.5)
        has_gate_bias = spec.mlp_bias and spec.mlp_gated
        self.gate_bias = make.zeros((inner,), ("mlp",)) if has_gate_bias else None
        self.up_bias = make.zeros((inner,), ("mlp",)) if spec.mlp_bias else None
        self.down_bias = make.zeros((hidden,), ("norm",)) if spec.mlp_bias else None
        self.adapters = adapters_of(self, "mlp", lora, make=make)

    def __call__(self, x: Float[Array, "b s d"], *, adapting: Adapting) -> Float[Array, "b s d"]:
        """Partial sums over ``tensor``, for the caller's ``scatter_sequence`` to add up; yet without the last bias."""
        activate = ACTIVATIONS[self.activation]
        inner = self._inward(x, "up", adapting)
        inner = activate(inner) if self.gate is None else activate(self._inward(x, "gate", adapting)) * inner
        out = project_back(inner, adapting.partition.weight(self.down))
        return adapted(out, inner, getattr(self.adapters, "down", None), adapting)

    def _inward(self, x: Array, name: str, adapting: Adapting) -> Array:
        out = project(x, adapting.partition.weight(getattr(self, name)))
        out = adapted(out, x, getattr(self.adapters, name, None), adapting)
        return biased(out, getattr(self, f"{name}_bias"))
