"""Functions that the model may call, and calls that it made before."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from tpuctl.serve.protocol.body import Body, refused

ToolChoice = Literal["none", "auto"]


class Function(Body):
    """A function, its parameters as a JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: refused("the arguments of calls are not bound to the schema", neutral=(False,)) = None  # type: ignore[valid-type]


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as a chat template prints it."""
        return self.model_dump(exclude_none=True)


class CalledFunction(Body):
    """A function that was called, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call with its arguments as data where they are JSON, which templates print as such."""
        found = self.model_dump()
        try:
            found["function"]["arguments"] = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            return found
        return found


def check_tool_choice(value: Any) -> ToolChoice | None:
    """Which call is wanted; ``ValueError`` for one that the answer would have to be bound to."""
    if value is None or value in ("none", "auto"):
        return value  # type: ignore[no-any-return]
    if value == "required" or isinstance(value, dict):
        raise ValueError("the model can't be made to call a function: only 'none' and 'auto' are served")
    raise ValueError("must be 'none' or 'auto'")
