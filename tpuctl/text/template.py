"""A chat template: conversations to text, letter for letter as transformers' ``apply_chat_template`` renders them.

Two things go beyond it, where it would write Python's notation of a list or fail: content in parts is given to a
template that knows none as one text, and every failure is a ``ChatTemplateError`` with the template's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.meta

from tpuctl.errors import DataError
from tpuctl.text.template_environment import Clock, compiled, rendering

Message = Mapping[str, Any]

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
# A message's reasoning has had several names; templates read the first, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "a text in parts"


class ChatTemplateError(DataError):
    """A conversation that the template does not render; the message is the template's own where it has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """What a template is given.

    Attributes:
        messages: Each with ``role`` and mostly ``content``: text, or a list of parts such as
            ``{"type": "text", "text": …}``.
        tools: JSON schemas of the functions the model may call.
        documents: Texts to draw on, with ``title`` and ``text``.
        variables: Whatever else the template reads, e.g. ``enable_thinking``.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """The text of a conversation, and the spans of it (characters) that generation blocks have written."""

    text: str
    generated: tuple[tuple[int, int], ...]


class ChatTemplate:
    """One template, with the special tokens it may name."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str], clock: Clock = datetime.now) -> None:
        """A template from its source text; ``clock`` is the time that it is told.

        Raises:
            ChatTemplateError: the source is no Jinja template.
        """
        self._source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = compiled(source, clock=clock)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template, line {error.lineno}: {error.message}") from error

    @cached_property
    def marks_generation(self) -> bool:
        """Whether the template says itself what the model is to write."""
        return any(node.identifier.endswith("GenerationBlock") for node in self._extension_calls())

    def reads(self, name: str) -> bool:
        """Whether the template reads a variable; one that it doesn't read would be ignored in silence."""
        return name in jinja2.meta.find_undeclared_variables(self._template.environment.parse(self._source))

    @property
    def source(self) -> str:
        """The text of the template itself."""
        return self._source

    def render(
        self, conversation: Conversation, *, add_generation_prompt: bool = False, continue_final_message: bool = False
    ) -> Rendered:
        """The text of a conversation.

        Args:
            conversation: At least one message.
            add_generation_prompt: End with the header of the answer that the model is to write.
            continue_final_message: End within the last message, for the model to go on with it.

        Raises:
            ChatTemplateError: the template refuses the conversation or fails on it, or it can't be continued.
        """
        messages = [_plain_message(message) for message in conversation.messages]
        if not messages:
            raise ChatTemplateError("a conversation without messages", hint="give at least one message")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("a conversation can't both be continued and be answered")
        if not self._takes_parts:
            messages = [_flat(message) for message in messages]
        final = _mark_final(messages[-1]) if continue_final_message else ""
        rendered = self._rendered(conversation, messages, add_generation_prompt=add_generation_prompt)
        return _cut_at_mark(rendered, final=final) if continue_final_message else rendered

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether content may be a list of parts: a template that knows none prints the list, or fails."""
        parts = [{"type": "text", "text": _PROBE}]
        probe = Conversation(messages=[{"role": "user", "content": parts}])
        try:
            text = self._rendered(probe, [dict(probe.messages[0])], add_generation_prompt=False).text
        except ChatTemplateError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text

    def _rendered(
        self, conversation: Conversation, messages: list[dict[str, Any]], *, add_generation_prompt: bool
    ) -> Rendered:
        given = {
            **self._special_tokens,
            **_plain(dict(conversation.variables)),
            "messages": [_with_reasoning(message) for message in messages],
            "tools": _plain(conversation.tools),
            "documents": _plain(conversation.documents),
            "add_generation_prompt": add_generation_prompt,
        }
        with rendering() as now:
            try:
                for part in self._template.generate(given):
                    now.add(part)
            except jinja2.TemplateError as error:
                raise ChatTemplateError(f"chat template: {error.message or type(error).__name__}") from error
            # What a template does with data it doesn't expect fails as Python does: None + "text", missing["key"] …
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
                raise ChatTemplateError(f"chat template: {type(error).__name__}: {error}") from error
        return Rendered(text="".join(now.parts), generated=tuple(now.generated))

    def _extension_calls(self) -> list[jinja2.nodes.ExtensionAttribute]:
        tree = self._template.environment.parse(self._source)
        return list(tree.find_all(jinja2.nodes.ExtensionAttribute))


def _plain(value: Any) -> Any:
    """Plain data of plain types: templates see no objects, whose methods the sandbox may not know."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


def _plain_message(message: Message) -> dict[str, Any]:
    """The message without keys that hold nothing: templates handle a missing key, but print a None."""
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"a message is a {type(message).__name__}, expected an object with role and content")
    return {str(key): _plain(value) for key, value in message.items() if value is not None}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """Parts of text as one text, a line each."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    found = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise ChatTemplateError("the chat template knows text only, and a message has content of another type")
    return {**message, "content": "\n".join(texts)}


def _mark_final(message: dict[str, Any]) -> str:
    """Put the mark behind the last text of a message, and return that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CONTINUED
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _CONTINUED
            return text
    raise ChatTemplateError("the last message has no text to continue", hint="end with a message that has content")


def _cut_at_mark(rendered: Rendered, *, final: str) -> Rendered:
    text, mark = rendered.text, _CONTINUED.strip()
    at = text.rfind(mark)
    if at < 0 or final.strip() not in text:
        raise ChatTemplateError("the chat template changes the last message, so it can't be continued")
    # A template that trims the content trims the mark's own space, too, and would have trimmed what precedes it.
    kept = text[:at] if text.startswith(_CONTINUED, at) else text[:at].rstrip()
    return Rendered(text=kept, generated=tuple((start, min(stop, len(kept))) for start, stop in rendered.generated))
