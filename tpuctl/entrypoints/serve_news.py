"""Telling how an endpoint goes, on the terminal and in the record: events as they come, figures every few seconds."""

from __future__ import annotations

from typing import Any

from tpuctl.entrypoints.emit import emit_event
from tpuctl.entrypoints.serve_host import News
from tpuctl.runs.events import Event, event
from tpuctl.runs.record import EventsWriter

TELL_SECONDS = 5.0


class Teller:
    """Tells the news of one endpoint. ``told`` events are known already."""

    def __init__(self, directory: str) -> None:
        self.told = 0
        self._history = EventsWriter(directory)
        self._figures: dict[str, Any] = {}

    def tell(self, news: News) -> None:
        """Tell what is new."""
        self.told += len(news.events)
        for item in news.events:
            emit_event(item)
        self._history.append(news.events)
        if news.figures is not None:
            self._tell_figures(news.figures)

    def tell_one(self, item: Event) -> None:
        """Tell an event of our own."""
        emit_event(item)
        self._history.append([item])

    def close(self) -> None:
        """Write down what was told."""
        self._history.close()

    def _tell_figures(self, figures: dict[str, Any]) -> None:
        """Every few seconds, as long as there is something to tell."""
        told, now = self._figures, event("serving", **figures)
        since = now["at"] - told.get("at", now["at"])
        if told and since < TELL_SECONDS:
            return
        self._figures = now
        # An engine that was started again counts from zero.
        made = max(0, figures["output_tokens"] - told.get("output_tokens", figures["output_tokens"]))
        if made or figures["running"] or figures["waiting"]:
            emit_event({**now, "tokens_per_second": made / since if since else None})
