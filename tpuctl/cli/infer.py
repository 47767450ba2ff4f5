"""``tpuctl infer``: every row of a dataset through a task, followed to its end."""

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
        verb="infer",
        kinds=("infer",),
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
