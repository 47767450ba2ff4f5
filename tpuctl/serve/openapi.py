"""``/openapi.json``: what may be asked, as machines read it. Made from the same models that check the bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from tpuctl import __version__
from tpuctl.serve.protocol import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

_POSTS: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_GETS = ("/v1/models", "/health", "/ready", "/version")
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@cache
def openapi_document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    references, schemas = models_json_schema(
        [(kind, "validation") for kind in _POSTS.values()], ref_template="#/components/schemas/{model}"
    )
    posts = {path: {"post": _post(references[kind, "validation"])} for path, kind in _POSTS.items()}
    gets = {path: {"get": {"responses": _answers()}} for path in _GETS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tpuctl serve", "version": __version__},
        "paths": {**posts, **gets},
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(reference: Any) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": reference}}}
    return {"requestBody": body, "responses": _answers(), "security": [{}, {"key": []}]}


def _answers() -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "200": {"description": "The answer", "content": {"application/json": {}, "text/event-stream": {}}},
        "default": {"description": "An error", **error},
    }
