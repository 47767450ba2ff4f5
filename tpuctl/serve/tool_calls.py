"""Function calls in the text of an answer, as models of the Hermes and Qwen families write them:
``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from tpuctl.text.stops import StopCutter

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call; ``arguments`` is JSON text, ``{}`` for a function that takes none."""

    name: str
    arguments: str
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def document(self) -> dict[str, Any]:
        """As a message has it."""
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def can_read_calls(template_source: str) -> bool:
    """Whether a model with this chat template writes calls in the form that is read here."""
    return OPEN in template_source


class CallReader:
    """Text in as it comes; text and calls out in their order. What turns out not to be a call is text."""

    def __init__(self) -> None:
        self._outside = StopCutter((OPEN,))
        self._inside: str | None = None
        self._after_call = False

    def add(self, text: str) -> list[str | Call]:
        """What this further text completes."""
        found: list[str | Call] = []
        while text:
            read = self._read_outside if self._inside is None else self._read_inside
            text = read(text, found)
        return found

    def finish(self) -> list[str | Call]:
        """What was held back: a call without its end is text."""
        rest = self._outside.finish() if self._inside is None else OPEN + self._inside
        return [rest] if rest and not (self._after_call and rest.isspace()) else []

    def _read_outside(self, text: str, found: list[str | Call]) -> str:
        shown, rest = _cut(self._outside, text)
        # Models put a line break between calls: it is no content.
        if shown and not (self._after_call and shown.isspace()):
            found.append(shown)
        if rest is None:
            return ""
        self._outside = StopCutter((OPEN,))
        self._inside = ""
        return rest

    def _read_inside(self, text: str, found: list[str | Call]) -> str:
        assert self._inside is not None, "called inside a call only"
        body, close, rest = (self._inside + text).partition(CLOSE)
        if not close:
            self._inside = body
            return ""
        self._inside = None
        call = _parsed(body)
        self._after_call = call is not None
        found.append(OPEN + body + CLOSE if call is None else call)
        return rest


def _cut(cutter: StopCutter, text: str) -> tuple[str, str | None]:
    """The text before the opening mark, and the text behind it if it has come."""
    held = cutter.held + text
    shown = cutter.add(text)
    if cutter.found is None:
        return shown, None
    return shown, held[len(shown) + len(cutter.found) :]


def _parsed(body: str) -> Call | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict | None):
        return None
    return Call(name=found["name"], arguments=json.dumps(arguments or {}, ensure_ascii=False))
