"""Which of a model's parameters are trained: all of them, or the adapters beside frozen weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree, joined, logical_axes, split_adapters
from tpuctl.plan.schema import TrainingPlan
from tpuctl.plan.weights_schema import LoraPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainable:
    """The line between what is trained and what is frozen.

    What is trained is f32 with moments, and in the checkpoint. What is frozen has neither gradient nor moments, is
    held in the dtype it is used in, and comes from the plan's model folder every time.
    """

    model: ModelSpec
    lora: LoraPlan | None
    compute_dtype: str

    @classmethod
    def of(cls, plan: TrainingPlan) -> Trainable:
        """That of a plan."""
        return cls(model=plan.model, lora=plan.lora, compute_dtype=plan.train.compute_dtype)

    def axes(self, *, tensor: int = 1) -> ParamTree:
        """The logical axes of all parameters, trained and frozen; see ``nn.params.logical_axes``."""
        return logical_axes(self.model, tensor=tensor, lora=self.lora)

    def split(self, params: ParamTree) -> tuple[ParamTree, ParamTree]:
        """What is trained and what is frozen of a tree like the parameters'; without adapters everything is trained."""
        return (params, {}) if self.lora is None else split_adapters(params)

    def trained(self, params: ParamTree) -> ParamTree:
        """The first half of ``split``."""
        return self.split(params)[0]

    def join(self, trained: ParamTree, frozen: ParamTree) -> ParamTree:
        """The tree that ``split`` took apart."""
        return joined(trained, frozen)

    def kept(self, state: Any) -> Any:
        """The part of a training state that its checkpoint holds."""
        return replace(state, params=self.trained(state.params))

    def working_dtype(self, axes: tuple[str, ...]) -> DTypeLike:
        """The dtype in which a parameter is used: norms and biases of the residual stream keep theirs, f32."""
        return jnp.float32 if "norm" in axes else jnp.dtype(self.compute_dtype)

    def stored_dtypes(self) -> ParamTree:
        """The dtype in which the state holds each weight beside which adapters may stand."""
        axes = split_adapters(self.axes())[1]
        dtypes: ParamTree = jax.tree.map(
            lambda named: jnp.dtype("float32" if self.lora is None else self.working_dtype(named)),
            axes,
            is_leaf=lambda node: isinstance(node, tuple),
        )
        return dtypes
