"""What an answer is bound to: the form that a chat's fields ask for, as the source of a grammar, compiled elsewhere.

A call is written as models of the Hermes and Qwen families do (see ``tool_calls``), its JSON spaced as their templates
space it, so that what the grammar leaves open is what the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tpuctl.serve.protocol import ApiError, ChatBody
from tpuctl.serve.protocol.formats import ResponseFormat
from tpuctl.serve.protocol.tools import AllowedToolChoice, NamedToolChoice, Tool
from tpuctl.serve.tool_calls import CLOSE, OPEN

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_OBJECT = {"type": "object"}
_TOOL_CHOICE, _RESPONSE_FORMAT = "tool_choice", "response_format"


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """The source of a grammar. ``param`` is the field at fault if it is none."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    param: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """Which functions an answer may call, and whether it must; ``several`` in one answer."""

    tools: tuple[Tool, ...]
    required: bool
    several: bool
    narrowed: bool = False

    @property
    def bound(self) -> bool:
        """Whether the answer has to be bound for that; else reading it is enough."""
        return self.required or self.narrowed or any(tool.function.strict for tool in self.tools)


def form_of_chat(body: ChatBody) -> Form | None:
    """What the answer to a chat is bound to.

    Raises:
        ApiError: Its fields don't go together.
    """
    answer, calls = _answer_form(body.response_format), wanted_calls(body)
    if calls is None or not (calls.bound or answer is not None):
        return answer
    if calls.required and answer is None:
        return Form(kind="lark", source=_only_calls(calls), param=_TOOL_CHOICE)
    if answer is None:
        return Form(kind="lark", source=_calls_in_text(calls), param="tools")
    if calls.required:
        message = "an answer that must be a call can't have another form"
        raise ApiError(message, param=_RESPONSE_FORMAT, code="invalid_value")
    if answer.kind != "json_schema":
        message = f"type {answer.kind!r} goes together with tools only where tool_choice is 'none'"
        raise ApiError(message, param=_RESPONSE_FORMAT, code="unsupported_value")
    return Form(kind="lark", source=_calls_or_json(calls, answer.source), param=_RESPONSE_FORMAT)


def wanted_calls(body: ChatBody) -> Calls | None:
    """The calls that a chat's fields let the answer make, None if none at all.

    Raises:
        ApiError: A function is named that is not among the tools.
    """
    choice, tools = body.tool_choice, body.tools
    if not tools or choice == "none":
        return None
    several = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return Calls(tools=_named(tools, [choice.function.name]), required=True, several=False)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        found = _named(tools, [tool.function.name for tool in allowed.tools])
        return Calls(tools=found, required=allowed.mode == "required", several=several, narrowed=True)
    return Calls(tools=tools, required=choice == "required", several=several)


def _named(tools: tuple[Tool, ...], names: Sequence[str]) -> tuple[Tool, ...]:
    known = {tool.function.name: tool for tool in tools}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        message = f"no function {unknown!r} is among the tools: {', '.join(known)}"
        raise ApiError(message, param=_TOOL_CHOICE, code="invalid_value")
    return tuple(known[name] for name in dict.fromkeys(names))


def _answer_form(form: ResponseFormat | None) -> Form | None:
    if form is None or form.type == "text":
        return None
    if form.json_schema is not None:
        return Form(kind="json_schema", source=json.dumps(form.json_schema.schema_), param=_RESPONSE_FORMAT)
    if form.regex is not None:
        return Form(kind="regex", source=form.regex, param=_RESPONSE_FORMAT)
    if form.grammar is not None:
        return Form(kind="lark", source=form.grammar, param=_RESPONSE_FORMAT)
    return Form(kind="json_schema", source=json.dumps(_ANY_OBJECT), param=_RESPONSE_FORMAT)


def _only_calls(calls: Calls) -> str:
    return _grammar("start: calls", _calls_rule(calls), *_call_rules(calls))


def _calls_or_json(calls: Calls, schema: str) -> str:
    return _grammar("start: calls | answer", f"answer: %json {schema}", _calls_rule(calls), *_call_rules(calls))


def _calls_in_text(calls: Calls) -> str:
    """Any text; but where it begins a call, one that fits."""
    begun = f"begun[lazy]: TEXT {_literal(OPEN)}"
    many = "*" if calls.several else "?"
    return _grammar(f"start: (begun call){many} TEXT", r"TEXT: /(.|\n)*/", begun, *_call_rules(calls, begun=True))


def _grammar(*rules: str) -> str:
    return "\n".join(("%llguidance {}", *rules))


def _calls_rule(calls: Calls) -> str:
    return 'calls: call ("\\n" call)*' if calls.several else "calls: call"


def _call_rules(calls: Calls, *, begun: bool = False) -> list[str]:
    names = [f"call_{number}" for number in range(len(calls.tools))]
    rules = [_call_rule(name, tool, calls, begun=begun) for name, tool in zip(names, calls.tools, strict=True)]
    return [f"call: {' | '.join(names)}", *rules]


def _call_rule(name: str, tool: Tool, calls: Calls, *, begun: bool) -> str:
    head = f'\n{{"name": {json.dumps(tool.function.name)}, "arguments": '
    opening = head if begun else OPEN + head
    arguments = json.dumps({**_arguments(tool, calls), "x-guidance": _SPACING})
    return f"{name}: {_literal(opening)} %json {arguments} {_literal(f'}}{chr(10)}{CLOSE}')}"


def _arguments(tool: Tool, calls: Calls) -> dict[str, Any]:
    """The schema of a call's arguments: the function's own where it binds the answer."""
    function = tool.function
    if not (calls.required or function.strict):
        return _ANY_OBJECT
    schema = function.parameters if function.parameters is not None else _NO_PARAMETERS
    if schema.get("type", "object") != "object":
        message = f"the parameters of {function.name} must be of type 'object', got {schema['type']!r}"
        raise ApiError(message, param="tools", code="invalid_value")
    return {"type": "object", **schema}


def _literal(text: str) -> str:
    """A text as a Lark literal, which is spelled as JSON spells it."""
    return json.dumps(text, ensure_ascii=False)
