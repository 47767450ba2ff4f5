"""What this machine says of a plan: the folders, files and links that are here. The last look before a job is made."""

from __future__ import annotations

import os.path
from dataclasses import replace
from pathlib import Path

from tpuctl.plan.apart import check_on_disk
from tpuctl.plan.infer_model import fit_model
from tpuctl.plan.models import merged_notes
from tpuctl.plan.schema import EmbeddingPlan, InferencePlan, ModelsPlan, Plan, ServingPlan
from tpuctl.plan.tokenizer import file_ids, is_tokenizer_file
from tpuctl.recipe.origin import Findings, Origin
from tpuctl.recipe.schema import InferenceRecipe, Recipe, ServingRecipe
from tpuctl.storage import is_gcs


def look_here(plan: Plan, recipe: Recipe, *, home: str | None, buckets: bool = True) -> Plan:
    """The plan with what the files it names decide, and a note for each that may be the cluster's alone.

    Without ``buckets`` no model folder in one is looked into.

    Raises:
        RecipeError: what is here can't be what the recipe means.
    """
    check_on_disk(plan, home=home, origin=recipe.origin)
    if isinstance(plan, InferencePlan) and isinstance(recipe, InferenceRecipe):
        if plan.model is not None and is_gcs(plan.model.uri) and not buckets:
            return plan
        plan = fit_model(plan, recipe)
        if plan.model is not None:
            _check_tokenizer("model.source", plan.model.uri, recipe.origin)
        return plan
    if isinstance(plan, ModelsPlan) and isinstance(recipe, ServingRecipe):
        alone = [plan.plan_of(model) for model in plan.models]
        notes = {one.endpoint.name: _look(one, recipe.models[one.endpoint.name].origin) for one in alone}
        return replace(plan, notes=(*plan.notes, *merged_notes(notes)))
    if isinstance(plan, ServingPlan | EmbeddingPlan):
        return replace(plan, notes=(*plan.notes, *_look(plan, recipe.origin)))
    return plan


def _look(plan: ServingPlan | EmbeddingPlan, origin: Origin) -> list[str]:
    """Check the tokenizer of a served model, and tell which of its files are not here."""
    if isinstance(plan, ServingPlan) and not _is_of_run(plan):
        own = plan.weights is not None and plan.weights.uri == plan.text.tokenizer
        _check_tokenizer("model.source" if own else "model.tokenizer", plan.text.tokenizer, origin)
    return _absent(plan)


def _is_of_run(plan: ServingPlan) -> bool:
    """Whether the tokenizer is that of the run whose checkpoint is served."""
    return plan.checkpoint is not None and plan.checkpoint.run == plan.text.tokenizer


def _check_tokenizer(key: str, place: str, origin: Origin) -> None:
    findings = Findings(origin=origin)
    if not is_tokenizer_file(place) or "://" in place:
        return
    try:
        file_ids(Path(place))
    except ValueError as error:
        findings.refuse(key, f"the tokenizer.json at {place} can't be read: {error}", "copy it again")
    findings.settle()


def _absent(plan: ServingPlan | EmbeddingPlan) -> list[str]:
    named: dict[str, str | None] = {}
    if isinstance(plan, ServingPlan):
        named["model.tokenizer"] = plan.text.tokenizer if is_tokenizer_file(plan.text.tokenizer) else None
        named["model.chat_template"] = plan.text.chat_template
    for key in ("api_key_file", "tls_cert", "tls_key"):
        named[f"serve.{key}"] = getattr(plan.endpoint, key)
    local = {key: place for key, place in named.items() if place and "://" not in place}
    missing = [(key, place) for key, place in local.items() if not os.path.exists(place)]
    return [f"{key}: {place} is not on this machine; the host that serves needs it there" for key, place in missing]
