"""From a recipe to a plan: every default filled in, every rule over several keys checked. Pure: no file, no clock."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tpuctl.plan.infer import resolve_infer
from tpuctl.plan.places import Here
from tpuctl.plan.schema import Plan
from tpuctl.plan.source import ModelSource
from tpuctl.plan.train import resolve_train
from tpuctl.recipe.schema import InferRecipe, Recipe, TrainRecipe


def resolve(
    recipe: Recipe, *, environ: Mapping[str, str], cwd: os.PathLike[str] | str, source: ModelSource | None = None
) -> Plan:
    """What the recipe amounts to.

    Args:
        recipe: As loaded.
        environ: The caller's environment: ``job.pass_env`` and ``~`` are looked up in it, nothing else.
        cwd: Where relative paths start, whatever directory the recipe lies in.
        source: What ``source.read_source`` found where the recipe names a model folder.

    Raises:
        RecipeError: all rules that are broken, each with file, line, key and remedy.
    """
    here = Here.of(cwd, environ)
    match recipe:
        case TrainRecipe():
            return resolve_train(recipe, environ=environ, here=here, source=source)
        case InferRecipe():
            return resolve_infer(recipe, environ=environ, here=here)
    raise AssertionError(f"a recipe of kind {recipe.kind} has no way to a plan")
