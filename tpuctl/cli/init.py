"""``tpuctl init``: a commented recipe to start from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import console
from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.plan.schema import JobKind


class RecipeKind(StrEnum):
    """What a recipe can run."""

    train = "train"
    infer = "infer"
    serve = "serve"


_AVAILABLE: dict[RecipeKind, JobKind] = {RecipeKind.train: "train", RecipeKind.infer: "infer"}


def init(
    kind: Annotated[RecipeKind, typer.Argument(help="What the recipe runs.", show_default=False)],
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write it; stdout if left out.", show_default=False)
    ] = None,
) -> None:
    """Write a recipe with every key explained. Never overwrites a file."""
    from tpuctl.recipe.reference import commented_recipe

    if kind not in _AVAILABLE:
        raise UsageError(f"{kind} recipes are not available yet", hint=f"available: {', '.join(_AVAILABLE)}")
    text = commented_recipe(_AVAILABLE[kind])
    if path is None or str(path) == "-":
        console.out(text.rstrip("\n"))
        return
    _write_new(path, text)
    console.say(f"wrote {path}; next: tpuctl check {path}")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="choose another name; init never overwrites") from error
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from error
