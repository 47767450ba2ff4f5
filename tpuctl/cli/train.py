"""``tpuctl train``: from a recipe to a training run that is followed to its end."""

from __future__ import annotations

import typer

from tpuctl.cli.options import (
    ClusterOption,
    DetachOption,
    DryRunOption,
    Output,
    OutputOption,
    QuietOption,
    RecipeArgument,
    SetOption,
    WaitOption,
)
from tpuctl.cli.start import Asked, start


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
        verb="train",
        kinds=("train",),
        recipe=recipe,
        overrides=set_ or (),
        cluster=cluster,
        wait=wait,
        detach=detach,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )
    raise typer.Exit(start(asked))
