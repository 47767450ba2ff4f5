"""``tpuctl train``: from a recipe to a job that is followed to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpuctl.cli.options import ClusterOption, Output, OutputOption, QuietOption, RecipeArgument, SetOption
from tpuctl.cli.progress import summary
from tpuctl.cli.verb import Asked, DetachOption, DryRunOption, Manner, WaitOption, run_recipe
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan


def train(
    recipe: RecipeArgument,
    *,
    set_: SetOption = None,
    cluster: ClusterOption = None,
    wait: WaitOption = None,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """Train: reserve the slice, run the job, follow it to its end. The same recipe again attaches or resumes."""
    asked = Asked(
        kind="train",
        recipe=recipe,
        overrides=set_ or [],
        cluster=cluster,
        wait=wait,
        detach=detach,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )

    def closing(plan: Plan, last: dict[str, Event]) -> list[str]:
        from tpuctl.plan.schema import TrainJob

        assert isinstance(plan, TrainJob), "run_recipe refuses others"
        further = asked.command(f"train.steps={2 * plan.train.steps}")
        return [*summary(last["done"], last.get("baselines")), f"go on          {further}"]

    raise typer.Exit(run_recipe(asked, Manner(closing=closing)))
