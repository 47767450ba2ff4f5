"""Where replicas write how they are, for the driver to tell."""

from __future__ import annotations

import statistics
import time
from typing import Any

from tpuctl.entrypoints.serve_host import News
from tpuctl.runs.events import Event

# A replica writes its figures every second; who has not for so long is gone.
_FRESH_SECONDS = 5.0


class Board:
    """To be made a Ray actor, which ends with the driver."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._figures: dict[str, tuple[float, dict[str, Any]]] = {}

    def put(self, item: Event) -> None:
        """Write down an event."""
        self._events.append(item)

    def put_figures(self, replica: str, figures: dict[str, Any]) -> None:
        """Write down a replica's figures of this moment."""
        self._figures[replica] = (time.monotonic(), figures)

    def news(self, *, since: int) -> News:
        """All events but the first ``since``, and the figures of all replicas as one."""
        earliest = time.monotonic() - _FRESH_SECONDS
        fresh = [figures for at, figures in self._figures.values() if at > earliest and figures]
        return News(events=self._events[since:], figures=together(fresh) if fresh else None)


def together(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several replicas as those of one."""
    first_tokens = [one["first_token_seconds"] for one in figures if one["first_token_seconds"] is not None]
    return {
        **{name: sum(one[name] for one in figures) for name in ("running", "waiting", "output_tokens")},
        "page_use": statistics.mean(one["page_use"] for one in figures),
        "first_token_seconds": statistics.median(first_tokens) if first_tokens else None,
    }
