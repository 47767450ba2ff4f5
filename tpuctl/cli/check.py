"""``tpuctl check``: is this recipe right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan


def check(recipe: RecipeArgument, set_: SetOption = None, output: OutputOption = Output.text) -> None:
    """Check a recipe without contacting anything. Exit code 2 and all errors if something is wrong."""
    from tpuctl.cli.plan import resolve_here
    from tpuctl.recipe.load import load_recipe

    plan = resolve_here(load_recipe(recipe, overrides=set_ or ()), buckets=False)
    unseen = _unseen(plan)
    learned = {} if unseen else _learned(plan)
    notes = [*plan.notes, *unseen]
    if output is Output.json:
        found: dict[str, Any] = {"schema": "tpuctl.check/1", "recipe": str(recipe), "ok": True, "notes": notes}
        console.print_json(found | learned)
        return
    for note in notes:
        console.say(f"note: {note}")
    for name, count in learned.items():
        console.say(f"{name}: {count:,}")
    console.out(f"{recipe}: ok")


def _unseen(plan: Plan) -> list[str]:
    """A note for each model folder that was not looked at, since it is in a bucket."""
    from tpuctl.plan.schema import ModelsPlan
    from tpuctl.storage import is_gcs

    plans = [plan.plan_of(model) for model in plan.models] if isinstance(plan, ModelsPlan) else [plan]
    unseen = dict.fromkeys(uri for uri in map(_model_place, plans) if is_gcs(uri))
    why = "`tpuctl plan` holds the recipe against its model: sizes, tokenizer, memory"
    return [f"{uri} was not looked at; {why}" for uri in unseen]


def _model_place(plan: Plan) -> str:
    from tpuctl.plan.schema import InferencePlan, ServingPlan, TrainingPlan

    if isinstance(plan, ServingPlan) and plan.checkpoint:
        return plan.checkpoint.run
    if isinstance(plan, TrainingPlan | ServingPlan):
        return plan.weights.uri if plan.weights else ""
    return plan.model.uri if isinstance(plan, InferencePlan) and plan.model else ""


def _learned(plan: Plan) -> dict[str, int]:
    """How many parameters a training run has, and how many of them it trains."""
    from tpuctl.plan.schema import TrainingPlan

    if not isinstance(plan, TrainingPlan):
        return {}
    return {"parameters": plan.budget.parameters, "trained": plan.budget.trained}
