"""``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from tpuctl.serve.protocol.body import Body
from tpuctl.serve.protocol.chat import Message


class TokenizeBody(Body):
    """A text or a conversation whose token ids are wanted."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = Field(None, min_length=1)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """Token ids whose text is wanted."""

    model: str | None = None
    tokens: tuple[int, ...]
