"""Writing events to this process's log, from where they travel to the terminal."""

from __future__ import annotations

import logging
from typing import Any

from tpuctl.runs.events import Event, event, format_line


def emit(name: str, **fields: Any) -> None:
    """Print one event line, at once."""
    emit_event(event(name, **fields))


def emit_event(item: Event) -> None:
    """Print an event that is made already."""
    print(format_line(item), flush=True)


def warnings_as_notes() -> None:
    """Let what tpuctl's own code warns of reach the terminal: Ray keeps the log of its workers in files.

    May be called more than once.
    """
    logger = logging.getLogger("tpuctl")
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes(level=logging.WARNING))


class _Notes(logging.Handler):
    """Prints a log record as an event."""

    def emit(self, record: logging.LogRecord) -> None:
        emit("note", text=record.getMessage())
