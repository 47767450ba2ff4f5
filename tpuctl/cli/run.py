"""``tpuctl run``: a job of any kind of recipe, above all a command or function of the user's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from tpuctl.errors import UsageError

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND]", help="Run this in place of the recipe's command.", show_default=False),
]


def run(
    recipe: RecipeArgument,
    command: CommandArgument = None,
    *,
    set_: SetOption = None,
    cluster: ClusterOption = None,
    wait: WaitOption = None,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """Run a recipe of any kind, above all a command or function of your own on every host of a whole slice."""
    if command:
        _require_custom(recipe, set_ or ())
    asked = Asked(
        verb="run",
        kinds=(),
        recipe=recipe,
        overrides=[*(set_ or ()), *_overriding(command or ())],
        cluster=cluster,
        wait=wait,
        detach=detach,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )
    raise typer.Exit(start(asked))


def _require_custom(recipe: Path, overrides: Sequence[str]) -> None:
    from tpuctl.recipe.load import kind_of

    kind = kind_of(recipe, overrides=overrides, wanted="custom")
    if kind != "custom":
        message = f"{recipe}: a command goes with kind 'custom' only, and this recipe is of kind {kind!r}"
        raise UsageError(message, hint="leave out -- and what follows; `tpuctl init custom` writes a recipe for it")


def _overriding(command: Sequence[str]) -> list[str]:
    """The overrides that put this command in the recipe's place. A command given as one word is cut into words."""
    if not command:
        return []
    words = shlex.split(command[0]) if len(command) == 1 else list(command)
    # A list in JSON is one in TOML too, but for the one control character that JSON leaves as it is.
    value = json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
    return ["job.entrypoint=unset", f"job.command={value}"]
