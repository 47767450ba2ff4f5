"""What this machine says of a plan: the folders, files and links that are here. The last look before a job is made."""

from __future__ import annotations

import os.path
from dataclasses import replace
from pathlib import Path

from tpuctl.plan.apart import check_on_disk
from tpuctl.plan.infer_model import fit_model
from tpuctl.plan.schema import InferencePlan, Plan, ServingPlan
from tpuctl.plan.tokenizer import file_ids, is_tokenizer_file
from tpuctl.recipe.origin import Findings, Origin
from tpuctl.recipe.schema import InferenceRecipe, Recipe


def look_here(plan: Plan, recipe: Recipe, *, home: str | None) -> Plan:
    """The plan with what the files it names decide, and a note for each that may be the cluster's alone.

    Raises:
        RecipeError: what is here can't be what the recipe means.
    """
    check_on_disk(plan, home=home, origin=recipe.origin)
    if isinstance(plan, InferencePlan) and isinstance(recipe, InferenceRecipe):
        return fit_model(plan, recipe)
    if isinstance(plan, ServingPlan):
        _check_tokenizer(plan, recipe.origin)
        return replace(plan, notes=(*plan.notes, *_absent(plan)))
    return plan


def _check_tokenizer(plan: ServingPlan, origin: Origin) -> None:
    name, findings = plan.text.tokenizer, Findings(origin=origin)
    if not is_tokenizer_file(name) or "://" in name:
        return
    key = "model.source" if plan.weights and plan.weights.uri == name else "model.tokenizer"
    try:
        file_ids(Path(name))
    except ValueError as error:
        findings.refuse(key, f"{name} has no tokenizer.json that can be read: {error}", "copy it again")
    findings.settle()


def _absent(plan: ServingPlan) -> list[str]:
    named = {
        "model.tokenizer": plan.text.tokenizer if is_tokenizer_file(plan.text.tokenizer) else None,
        "model.chat_template": plan.text.chat_template,
        "serve.api_key_file": plan.endpoint.api_key_file,
    }
    local = {key: place for key, place in named.items() if place and "://" not in place}
    missing = [(key, place) for key, place in local.items() if not os.path.exists(place)]
    return [f"{key}: {place} is not on this machine; the host that serves needs it there" for key, place in missing]
