"""``tpuctl check``: is this recipe right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan


def check(recipe: RecipeArgument, set_: SetOption = None, output: OutputOption = Output.text) -> None:
    """Check a recipe without contacting anything. Exit code 2 and all errors if something is wrong."""
    from tpuctl.cli.plan import resolve_recipe

    plan = resolve_recipe(recipe, set_ or ())
    if output is Output.json:
        found = {"schema": "tpuctl.check/1", "recipe": str(recipe), "ok": True, "notes": list(plan.notes)}
        console.print_json(found | _learned(plan))
        return
    for note in plan.notes:
        console.say(f"note: {note}")
    for name, count in _learned(plan).items():
        console.say(f"{name}: {count:,}")
    console.out(f"{recipe}: ok")


def _learned(plan: Plan) -> dict[str, Any]:
    """How many parameters a training run has, and how many of them it trains."""
    from tpuctl.plan.schema import TrainingPlan

    if not isinstance(plan, TrainingPlan):
        return {}
    return {"parameters": plan.budget.parameters, "trained": plan.budget.trained}
