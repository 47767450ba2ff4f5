"""What a conversation in data must look like before a template sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.text.answers import ASSISTANT

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
# A system prompt or a tool's result may be empty; a turn of these two without content is a hole in the data.
_SPEAKERS = frozenset({"user", ASSISTANT})


def what_is_wrong(messages: Sequence[Any]) -> str | None:
    """The first thing that makes these no messages of a conversation, in words; None where nothing does."""
    return next((text for number, message in enumerate(messages) if (text := _wrong(message, number))), None)


def _wrong(message: Any, number: int) -> str | None:
    if not isinstance(message, dict):
        return f"message {number} is a {type(message).__name__}, expected an object with role and content"
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        known = ", ".join(sorted(ROLES))
        return f"message {number} has the role {role!r}; roles are {known}"
    if content is not None and not isinstance(content, str | list):
        return f"message {number} has content of type {type(content).__name__}, expected text"
    if role in _SPEAKERS and not content and not message.get("tool_calls"):
        return f"message {number} ({role}) has no content"
    return None
