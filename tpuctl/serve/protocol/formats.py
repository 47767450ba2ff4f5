"""``response_format``: what form the answer is bound to."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tpuctl.serve.protocol.body import Body


class JsonSchemaFormat(Body):
    """A named JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
