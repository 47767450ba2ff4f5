"""Cutting text at stop strings as it comes: what may still become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Text in, text that may be shown out. A stop string may lie across any number of pieces."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        """Looks for any of ``stops``; the one found is shown only if ``keep_stop``."""
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._held = ""
        self.found: str | None = None

    @property
    def held(self) -> str:
        """Text that may still become a stop string."""
        return self._held

    def add(self, text: str) -> str:
        """The text that can be shown now. Once ``found`` is set it is the last."""
        self._held += text
        hit = self._first_hit()
        if hit is None:
            return self._take(len(self._held) - self._prefix_length())
        start, self.found = hit
        shown = self._held[: start + (len(self.found) if self._keep_stop else 0)]
        self._held = ""
        return shown

    def add_past(self, text: str) -> str:
        """The text that can be shown, if no stop string counts yet."""
        self._held += text
        return self._take(len(self._held))

    def finish(self) -> str:
        """What was held back: no stop string came of it."""
        return self._take(len(self._held))

    def _first_hit(self) -> tuple[int, str] | None:
        """The stop string that ends first, as it would be met token by token; of two, the one that begins first."""
        hits = [(start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]), default=None)

    def _prefix_length(self) -> int:
        """How much of the text's end a stop string could begin with."""
        return max((_overlap(self._held, stop) for stop in self._stops), default=0)

    def _take(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        return shown


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
