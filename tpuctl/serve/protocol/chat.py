"""``/v1/chat/completions``: a conversation to answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tpuctl.engine.request import MAX_LOGPROBS
from tpuctl.serve.protocol.body import Body, checked, refused
from tpuctl.serve.protocol.formats import ResponseFormat
from tpuctl.serve.protocol.sampling import SamplingFields
from tpuctl.serve.protocol.tools import Tool, ToolCall, ToolChoice, check_tool_choice

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
Content = str | tuple[dict[str, Any], ...] | None

_MAX_INT32 = 2**31 - 1


_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART}, {"type": "null"}]}


def _content(value: Any) -> Content:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a text or a list of parts")
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"only parts of type 'text' can be read, got {kind!r}")
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError("a part of type 'text' has a 'text' that is a text, and nothing else")
    return tuple(value)


class Message(Body):
    """One message. Which of the roles and their order make sense is up to the model's chat template."""

    role: Role
    content: checked(Content, _content, schema=_CONTENT_SCHEMA) = None  # type: ignore[valid-type]
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: refused("there is no sound here") = None  # type: ignore[valid-type]
    function_call: refused("use tool_calls") = None  # type: ignore[valid-type]

    def for_template(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        found = self.model_dump(exclude_none=True, exclude={"tool_calls", "refusal"})
        if self.refusal and not self.content:
            found["content"] = self.refusal
        if isinstance(self.content, tuple):
            found["content"] = list(self.content)
        elif self.content is None and self.role != "assistant":
            found["content"] = ""
        if self.tool_calls:
            found["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return found


class ChatBody(SamplingFields):
    """A request to ``/v1/chat/completions``."""

    messages: tuple[Message, ...] = Field(min_length=1, description="the conversation; content in parts of text too")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=_MAX_INT32, description="tokens to make at most; what the context has left if left out"
    )
    max_tokens: int | None = Field(None, ge=1, le=_MAX_INT32, description="the older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="log probabilities of each token")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="with those of so many likeliest; only together with logprobs"
    )
    response_format: ResponseFormat | None = Field(
        None,
        description="text, json_object, json_schema; beyond OpenAI regex and grammar (Lark). It binds the answer",
    )
    tools: tuple[Tool, ...] | None = Field(None, max_length=128, description="functions the model may call")
    tool_choice: checked(ToolChoice | None, check_tool_choice) = Field(  # type: ignore[valid-type]
        None,
        description="none, auto, required, a named function, allowed_tools; a call that must be is bound to its schema",
    )
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="given to the chat template; refused where it doesn't read it"
    )
    service_tier: refused("there is one tier", neutral=("auto", "default")) = Field(  # type: ignore[valid-type]
        None, description="auto and default pass; there is one tier"
    )
    store: refused("nothing is stored", neutral=(False,)) = Field(  # type: ignore[valid-type]
        None, description="false passes; nothing is stored"
    )
    modalities: refused("the answer is text", neutral=(["text"],)) = Field(  # type: ignore[valid-type]
        None, description="only text"
    )
    safety_identifier: str | None = Field(None, description="goes to the request log and nowhere else")
    prompt_cache_key: str | None = Field(
        None, description="a hint for routing between caches; one server has one, which finds equal beginnings itself"
    )
    audio: refused("there is no sound here") = Field(None, description="refused")  # type: ignore[valid-type]
    function_call: refused("use tool_choice", neutral=("none",)) = Field(  # type: ignore[valid-type]
        None, description="refused: use tool_choice"
    )
    functions: refused("use tools") = Field(None, description="refused: use tools")  # type: ignore[valid-type]
    metadata: refused("it belongs to stored answers, and nothing is stored", neutral=({},)) = Field(  # type: ignore[valid-type]
        None, description="refused: nothing is stored"
    )
    moderation: refused("there is no moderation here") = Field(  # type: ignore[valid-type]
        None, description="refused"
    )
    prediction: refused("predicted outputs are not used") = Field(  # type: ignore[valid-type]
        None, description="refused"
    )
    prompt_cache_options: refused("the cache has no options") = Field(  # type: ignore[valid-type]
        None, description="refused"
    )
    prompt_cache_retention: refused("the cache keeps what it has room for", neutral=("in_memory", "in-memory")) = Field(  # type: ignore[valid-type]
        None, description="in_memory passes; the cache keeps what it has room for"
    )
    verbosity: refused("models served here don't read it", neutral=("medium",)) = Field(  # type: ignore[valid-type]
        None, description="medium, which is no change, passes"
    )
    web_search_options: refused("there is no web search here") = Field(  # type: ignore[valid-type]
        None, description="refused"
    )

    add_generation_prompt: bool | None = Field(None, description="false leaves out the header of the answer")
    continue_final_message: bool | None = Field(None, description="go on with the last message")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables for the chat template")
    documents: tuple[dict[str, Any], ...] | None = Field(None, description="texts for the chat template")

    @property
    def output_limit(self) -> int | None:
        """Tokens to make at most, if it was said."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_param(self) -> str:
        """The field that says it."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
