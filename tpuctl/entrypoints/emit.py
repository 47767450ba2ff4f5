"""Writing events to this process's log, from where they travel to the terminal."""

from __future__ import annotations

from typing import Any

from tpuctl.runs.events import Event, event, format_line


def emit(name: str, **fields: Any) -> None:
    """Print one event line, at once."""
    emit_event(event(name, **fields))


def tell_note(text: str) -> None:
    """Print a line for people, as an event."""
    emit("note", text=text)


def emit_event(item: Event) -> None:
    """Print an event that is made already."""
    print(format_line(item), flush=True)
