"""``tpuctl train``: from a recipe to a job that is followed to its end."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.options import ClusterOption, Output, OutputOption, QuietOption, RecipeArgument, SetOption
from tpuctl.masking import MASK, looks_secret

if TYPE_CHECKING:
    pass

DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it running.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop, as `tpuctl plan` does.")]
WaitOption = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait so long for a free slice: 2h, 30m, 90.", show_default=False),
]


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
    from tpuctl.cli.launch import Launching, launch_and_follow
    from tpuctl.plan.resolve import resolve
    from tpuctl.recipe.load import load_recipe
    from tpuctl.recipe.values import parse_duration

    if dry_run:
        from tpuctl.cli.plan import plan as show_plan

        show_plan(recipe, set_, output)
        return
    overrides = set_ or []
    loaded = load_recipe(recipe, overrides=overrides)
    plan = resolve(loaded, environ=os.environ, cwd=Path.cwd())
    launching = Launching(
        plan=plan,
        flag=cluster,
        recipe_address=loaded.cluster.address,
        wait_seconds=0.0 if wait is None else parse_duration(wait, option="--wait"),
        detach=detach,
        output="ids" if quiet else output.value,
        again=_command(recipe, overrides, cluster=cluster),
        further=_command(recipe, [*overrides, f"train.steps={2 * plan.train.steps}"], cluster=cluster),
    )
    raise typer.Exit(launch_and_follow(launching))


def _command(recipe: Path, overrides: list[str], *, cluster: str | None) -> str:
    where = [] if cluster is None else ["--cluster", cluster]
    sets = [word for override in overrides for word in ("--set", _printable(override))]
    return shlex.join(["tpuctl", "train", str(recipe), *sets, *where])


def _printable(override: str) -> str:
    key, equals, _ = override.partition("=")
    secret = key.strip().startswith("job.secrets") or looks_secret(key.strip().rpartition(".")[2])
    return f"{key}{equals}{MASK}" if secret else override
