"""``response_format``: what form the answer is bound to."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tpuctl.serve.protocol.body import Body


class JsonSchemaFormat(Body):
    """A named JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchemaFormat | None = None
    regex: str | None = Field(None, max_length=10_000)
    grammar: str | None = Field(None, max_length=100_000)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in ("json_schema", "regex", "grammar"):
            if (getattr(self, name) is not None) != (self.type == name):
                raise ValueError(f"type {name!r} and the field {name} go together")
        return self
