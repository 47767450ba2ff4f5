"""Functions that the model may call, and calls that it made before."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from tpuctl.serve.protocol.body import Body, path_of


class Function(Body):
    """A function, its parameters as a JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as a chat template prints it."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


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


class FunctionName(Body):
    """A function by its name."""

    name: str


class NamedToolChoice(Body):
    """The answer is a call of this function."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """The functions among the tools that may be called, or must be."""

    mode: Literal["auto", "required"]
    tools: tuple[NamedToolChoice, ...] = Field(min_length=1)


class AllowedToolChoice(Body):
    """Calls of some of the tools only, which leaves the prompt as it is."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


def check_tool_choice(value: Any) -> ToolChoice | None:
    """Which call is wanted; ``ValueError`` of what is none of the forms."""
    if value is None or value in ("none", "auto", "required"):
        return value  # type: ignore[no-any-return]
    said = value.get("type") if isinstance(value, dict) else None
    kind = _KINDS.get(said) if isinstance(said, str) else None
    if kind is None:
        raise ValueError("must be 'none', 'auto', 'required', a function or allowed_tools")
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path_of(first['loc'])}: {first['msg']}") from None


_KINDS: dict[str, type[NamedToolChoice | AllowedToolChoice]] = {
    "function": NamedToolChoice,
    "allowed_tools": AllowedToolChoice,
}
