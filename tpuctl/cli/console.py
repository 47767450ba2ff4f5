"""The one output sink: data to stdout, talk to stderr, colour and live widgets only on a terminal.

The only file that imports rich, and only when something needs it: a pipe never pays for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from rich.console import Console


class ReaderLeftError(Exception):
    """Whoever read our stdout has gone, as ``head`` does. No ``OSError``, which click would end with exit code 1."""


def out(text: str) -> None:
    """Write one line of data to stdout."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderLeftError from error


def say(text: str) -> None:
    """Write one line of talk to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(document: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout; ``indent=None`` makes it one line, for streams."""
    out(json.dumps(document, indent=indent))


def is_live() -> bool:
    """Whether talk goes to a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def stderr_console() -> Console:
    """The rich console for live widgets."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to stdout: drawn on a terminal, tab-separated with a header in a pipe."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            out("\t".join(str(cell) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    Console(highlight=False, markup=False).print(drawn)


def say_error(error: TpuctlError) -> None:
    """Say what went wrong, where, and what to do."""
    place = f"{error.where}: " if error.where else ""
    say(f"tpuctl: error: {place}{error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")


def error_document(error: TpuctlError) -> dict[str, Any]:
    """The same error for ``-o json``."""
    return {
        "schema": "tpuctl.error/1",
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "where": str(error.where) if error.where else None,
        "exit_code": int(error.exit_code),
    }
