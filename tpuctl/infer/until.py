"""An answer's text on its way, until a stop text comes."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.text.detokenize import Detokenizer
from tpuctl.text.stops import StopCutter


class TextUntil:
    """A ``Watch`` of the engine's loop: ends a sample at the first of some texts, and keeps what was before it."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._cutter = StopCutter(stops)
        self._text = ""

    def add(self, token_ids: Sequence[int]) -> bool:
        """Take on tokens; whether a stop text has come."""
        self._text += self._cutter.add(self._detokenizer.add(token_ids))
        return self._cutter.found is not None

    def finish(self) -> str:
        """The answer's text, once no more comes."""
        if self._cutter.found is None:
            self._text += self._cutter.add(self._detokenizer.finish()) + self._cutter.finish()
        return self._text
