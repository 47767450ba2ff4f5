"""``tpuctl init``: a commented recipe to start from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption
from tpuctl.cli.place import local_file
from tpuctl.errors import UsageError


class RecipeKind(StrEnum):
    """What a recipe can run."""

    train = "train"
    custom = "custom"
    infer = "infer"
    serve = "serve"


def init(
    kind: Annotated[RecipeKind, typer.Argument(help="What the recipe runs.", show_default=False)],
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Where to write it; stdout if left out.", parser=local_file, show_default=False
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Write a recipe with every key explained. Never overwrites a file."""
    from tpuctl.recipe.reference import commented_recipe
    from tpuctl.recipe.schema import RECIPES

    if kind.value not in RECIPES:
        raise UsageError(f"{kind} recipes are not available yet", hint=f"available: {', '.join(RECIPES)}")
    text = commented_recipe(kind.value)
    to_stdout = path is None or str(path) == "-"
    if path is not None and not to_stdout:
        _write_new(path, text)
    if output is Output.json:
        document = {"kind": kind.value, "file": None if to_stdout else str(path), "recipe": text}
        console.print_json({"schema": "tpuctl.init/1", **document})
    elif to_stdout:
        console.out(text.rstrip("\n"))
    if not to_stdout:
        console.say(f"wrote {path}; next: tpuctl check {path}")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="choose another name; init never overwrites") from error
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from error
