"""What is around the choices of an answer or of a chunk of one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tpuctl.engine.request import FinishReason
from tpuctl.serve.generation import Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """One answer's identity; the same in all of its chunks."""

    answer_id: str
    kind: str
    model: str
    chunk_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """A whole answer."""
        return {**self._head(self.kind), "choices": choices, "usage": usage.document()}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A chunk of one choice. Where usage was asked for, all chunks but the last say that it is not in them."""
        return {**self._head(self._chunk_kind()), "choices": [choice], **({"usage": None} if self.chunk_usage else {})}

    def last(self, usage: Usage) -> dict[str, Any]:
        """The chunk after all choices, with the counts."""
        return {**self._head(self._chunk_kind()), "choices": [], "usage": usage.document()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat.completion" else self.kind


def ending(reason: FinishReason | None, stop: str | int | None) -> dict[str, Any]:
    """How a choice says that it has ended, or that it has not."""
    return {"finish_reason": reason} if reason is None else {"finish_reason": reason, "stop_reason": stop}
