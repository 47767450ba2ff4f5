"""A model as a host is to run it: what of a plan its runner depends on, whatever the plan is of."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.model_folder import read_config
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.plan.schema import InferencePlan, MeshPlan, ServingPlan
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype, ServedAdapterPlan, WeightsPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel:
    """A model with its weights and adapters in folders that this host reads; without weights drawn from ``seed``.

    Attributes:
        dtype: Numbers it computes with.
        quantised: What its matrices are quantised to, ``None`` for not at all.
        kv_dtype: What its KV pages are kept in, ``None`` for ``dtype``.
        mesh: Over the devices of all hosts that run it together.
    """

    spec: ModelSpec
    weights: WeightsPlan | None
    dtype: str
    quantised: QuantisedDtype | None
    kv_dtype: KvDtype | None
    mesh: MeshPlan
    adapters: tuple[ServedAdapterPlan, ...] = ()
    seed: int = 0

    @classmethod
    def served(cls, plan: ServingPlan) -> LocalModel:
        """The model of an endpoint, whose plan has folders of this host already."""
        return cls(
            spec=plan.model,
            weights=plan.weights,
            dtype=plan.engine.dtype,
            quantised=plan.engine.weights,
            kv_dtype=plan.engine.kv_dtype,
            mesh=plan.mesh,
            adapters=plan.adapters,
            seed=plan.engine.seed,
        )

    @classmethod
    def inferred(cls, plan: InferencePlan) -> LocalModel:
        """The model of batch inference, over all devices of a slice.

        Raises:
            WeightsError: There is none, or a built-in model can't be fetched.
        """
        assert plan.model is not None, "a replica has a model"
        assert plan.replica is not None, "plan.infer_model makes one for each language model"
        folder = model_folder(plan.model.uri)
        config = read_config(folder)
        return cls(
            spec=spec_from_config(config),
            weights=WeightsPlan(uri=folder, family=str(config.get("model_type"))),
            dtype=plan.task.dtype,
            quantised=plan.task.weights,
            kv_dtype=plan.task.kv_dtype,
            mesh=MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=plan.replica.tensor),
        )
