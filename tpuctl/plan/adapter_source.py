"""What the adapters that a recipe of serving names say of themselves: read before it is resolved, as the model is."""

from __future__ import annotations

from dataclasses import replace

from tpuctl.adapter_folder import open_adapter
from tpuctl.errors import StorageError, WeightsError
from tpuctl.plan.here import Here
from tpuctl.plan.places import storage_place
from tpuctl.plan.run_source import is_run, read_training_plan, run_and_step
from tpuctl.plan.weights_schema import LoraPlan, ServedAdapterPlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe
from tpuctl.storage import is_gcs


def read_adapters(recipe: ServingRecipe, *, here: Here, buckets: bool) -> tuple[ServedAdapterPlan, ...]:
    """The adapters of a recipe, in its order. Without ``buckets`` those in one are left out.

    Raises:
        RecipeError: all places where there is none, or none of a kind that is supported.
    """
    findings = Findings(origin=recipe.origin)
    found: list[ServedAdapterPlan] = []
    for name, place in recipe.serve.adapters.items():
        key = f"serve.adapters.{name}"
        if not place.strip():
            findings.refuse(key, "must not be empty", "name a folder, or a run")
            continue
        uri = storage_place(key, place, here=here, findings=findings)
        if findings.has(key) or (is_gcs(uri) and not buckets):
            continue
        try:
            found.append(_adapter(name, uri))
        except (WeightsError, StorageError) as error:
            findings.refuse(key, error.message, error.hint)
    findings.settle()
    return tuple(found)


def _adapter(name: str, uri: str) -> ServedAdapterPlan:
    run, step = run_and_step(uri)
    if is_run(run):
        return ServedAdapterPlan(name=name, uri=run, is_run=True, step=step, lora=_of_run(run))
    folder = open_adapter(uri)
    lora = LoraPlan(rank=folder.rank, alpha=folder.alpha, targets=folder.targets, dropout=0.0, adapter=None)
    return ServedAdapterPlan(name=name, uri=uri, is_run=False, step=None, lora=lora)


def _of_run(uri: str) -> LoraPlan:
    lora = read_training_plan(uri).lora
    if lora is None:
        hint = "serve it as a model of its own: model.checkpoint"
        raise WeightsError(f"{uri} is a run that trained all weights, and no adapters", hint=hint)
    return replace(lora, dropout=0.0, adapter=None)
