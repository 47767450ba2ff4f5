"""``tpuctl infer``: every row of a dataset through a task, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tpuctl.cli import console
from tpuctl.cli.options import ClusterOption, Output, OutputOption, QuietOption, RecipeArgument, SetOption
from tpuctl.cli.progress import infer_summary
from tpuctl.cli.verb import Asked, DetachOption, DryRunOption, Manner, WaitOption, run_recipe
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan
    from tpuctl.submit.files import Files


def infer(
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
    """Infer: every row of a dataset through a task, each exactly once. The same recipe again does what is missing."""
    asked = Asked(
        kind="infer",
        recipe=recipe,
        overrides=set_ or [],
        cluster=cluster,
        wait=wait,
        detach=detach,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )

    def closing(_: Plan, last: dict[str, Event]) -> list[str]:
        done = last["done"]
        if output is Output.text and not quiet and done["first"]["rows"]:
            console.table(done["first"]["columns"], done["first"]["rows"])
        return infer_summary(done)

    raise typer.Exit(run_recipe(asked, Manner(closing=closing, files=function_files)))


def function_files(plan: Plan) -> Files:
    """The module of a custom task as files that travel with the job, if it lies in the current directory."""
    from tpuctl.plan.schema import InferJob
    from tpuctl.submit.files import collect

    assert isinstance(plan, InferJob), "run_recipe refuses others"
    if plan.task.function is None:
        return {}
    name = plan.task.function.partition(":")[0].partition(".")[0]
    module, package = Path(f"{name}.py"), Path(name)
    if module.is_file():
        return {module.name: module.absolute()}
    if package.is_dir():
        return {f"{name}/{inner}": path for inner, path in collect(package.absolute()).items()}
    return {}
