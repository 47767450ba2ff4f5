"""The one output sink: data to stdout, talk to stderr, colour and live widgets only on a terminal.

The only file that imports rich, and only when something needs it: a pipe never pays for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpuctl.errors import RecipeError, TpuctlError

if TYPE_CHECKING:
    from rich.console import Console


_PLACE = ("file", "line", "key")


class ReaderLeftError(Exception):
    """Whoever read our stdout has gone, as ``head`` does. No ``OSError``, which click would end with exit code 1."""


class StdoutError(Exception):
    """What reads our stdout takes no more: a full disk. No ``OSError``, which a watch would take for its cluster's."""


def out(text: str) -> None:
    """Write one line of data to stdout."""
    write(text + "\n")


def write(text: str) -> None:
    """Write data to stdout as it comes."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderLeftError from error
    except OSError as error:
        raise StdoutError(error.strerror) from error


def say(text: str) -> None:
    """Write one line of talk to stderr."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def print_json(document: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout; ``indent=None`` makes it one line, for streams."""
    out(json.dumps(document, indent=indent))


def counted(number: int, noun: str) -> str:
    """``1 page``, ``2 pages``, ``1,024 pages``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_live() -> bool:
    """Whether talk goes to a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def stderr_console() -> Console:
    """The rich console for live widgets."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to stdout: drawn on a terminal, tab-separated with a header in a pipe."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [columns, *cells]:
            out("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in cells:
        drawn.add_row(*row)
    Console(highlight=False, markup=False).print(drawn)


def say_error(error: TpuctlError) -> None:
    """Say what went wrong, where, and what to do."""
    place = f"{error.where}: " if error.where else ""
    say(f"tpuctl: error: {place}{error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")


def error_document(error: TpuctlError) -> dict[str, Any]:
    """The same error for ``-o json``; of a recipe, every problem by itself."""
    document: dict[str, Any] = {
        "schema": "tpuctl.error/1",
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "where": str(error.where) if error.where else None,
        "exit_code": int(error.exit_code),
    }
    if isinstance(error, RecipeError):
        document["problems"] = [_problem(part) for part in error.parts or (error,)]
    return document


def printable(text: str) -> str:
    """The text with its control characters spelled out: what a file or a job says must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _problem(error: RecipeError) -> dict[str, Any]:
    where = error.where
    place = {"file": where.file, "line": where.line, "key": where.key} if where else dict.fromkeys(_PLACE)
    return {**place, "message": error.message, "hint": error.hint}
