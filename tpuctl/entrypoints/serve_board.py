"""Where replicas write how they are, for the driver to tell."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from tpuctl.entrypoints.serve_host import News
from tpuctl.runs.events import Event

# A replica writes its figures every second; who has not for so long is gone.
_FRESH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaFigures:
    """A replica of a model at one moment: its figures, and all that it counts as Prometheus' text."""

    model: str
    figures: dict[str, Any]
    metrics: bytes


class Board:
    """To be made a Ray actor, which ends with the driver."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._figures: dict[str, tuple[float, ReplicaFigures]] = {}

    def put(self, item: Event) -> None:
        """Write down an event."""
        self._events.append(item)

    def put_figures(self, replica: str, figures: ReplicaFigures | None) -> None:
        """Write down a replica's figures of this moment, None as long as it has none."""
        if figures is not None:
            self._figures[replica] = (time.monotonic(), figures)

    def news(self, *, since: int) -> News:
        """All events but the first ``since``, and the figures of all replicas as one."""
        fresh = [told.figures for told in self._fresh().values()]
        return News(events=self._events[since:], figures=together(fresh) if fresh else None)

    def metrics(self) -> list[tuple[dict[str, str], bytes]]:
        """What each replica counts, with the labels that tell it from others."""
        return [({"model_name": told.model, "replica": name}, told.metrics) for name, told in self._fresh().items()]

    def _fresh(self) -> dict[str, ReplicaFigures]:
        earliest = time.monotonic() - _FRESH_SECONDS
        self._figures = {name: told for name, told in self._figures.items() if told[0] > earliest}
        return {name: told for name, (_, told) in self._figures.items()}


def together(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several replicas as those of one."""
    first_tokens = [one["first_token_seconds"] for one in figures if one["first_token_seconds"] is not None]
    return {
        **{name: sum(one[name] for one in figures) for name in ("running", "waiting", "output_tokens")},
        "page_use": statistics.mean(one["page_use"] for one in figures),
        "first_token_seconds": statistics.median(first_tokens) if first_tokens else None,
    }
