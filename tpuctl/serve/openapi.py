"""``/openapi.json``: what may be asked, as machines read it. Made from the same models that check the bodies.

What a schema can't say is not in it: which fields go together, and how many tokens a text has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from tpuctl import __version__
from tpuctl.serve.protocol import Body, ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody

_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
# What each path takes as a body, and answers as.
POSTS: dict[str, tuple[type[Body], tuple[str, ...]]] = {
    "/v1/completions": (CompletionBody, (_JSON, _EVENTS)),
    "/v1/chat/completions": (ChatBody, (_JSON, _EVENTS)),
    "/v1/embeddings": (EmbeddingBody, (_JSON,)),
    "/tokenize": (TokenizeBody, (_JSON,)),
    "/detokenize": (DetokenizeBody, (_JSON,)),
}
_OPEN_GETS = {
    "/health": _JSON,
    "/ready": _JSON,
    "/version": _JSON,
    "/metrics": _TEXT,
    "/openapi.json": _JSON,
}
_SECURITY: list[dict[str, list[str]]] = [{}, {"key": []}]
_STRING_OR_NULL = {"type": ["string", "null"]}
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
                "param": _STRING_OR_NULL,
                "code": _STRING_OR_NULL,
            },
        }
    },
}


def openapi_document(models: Sequence[str]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an endpoint that serves models of these names; none is known before it is ready."""
    references, schemas = models_json_schema(
        [(kind, "validation") for kind, _ in POSTS.values()], ref_template="#/components/schemas/{model}"
    )
    bodies = schemas.get("$defs", {})
    for kind, _ in POSTS.values():
        _name_models(bodies[kind.__name__], models)
    posts = {path: {"post": _post(references[kind, "validation"], kinds)} for path, (kind, kinds) in POSTS.items()}
    listed = {"get": {"responses": _answers(_JSON), "security": _SECURITY}}
    gets = {path: {"get": {"responses": _answers(kind)}} for path, kind in _OPEN_GETS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tpuctl serve", "version": __version__},
        "paths": {**posts, "/v1/models": listed, "/v1/models/{name}": _with_name(listed, models), **gets},
        "components": {
            "schemas": {**bodies, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name_models(schema: dict[str, Any], models: Sequence[str]) -> None:
    """Put the names that there are into a body's schema."""
    if not models:
        return
    field = schema["properties"]["model"]
    required = "model" in schema.get("required", ())
    schema["properties"]["model"] = {
        **{key: value for key, value in field.items() if key in ("description", "title")},
        "enum": list(models) if required else [*models, None],
    }


def _with_name(path: dict[str, Any], models: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "string", **({"enum": list(models)} if models else {})}
    return {**path, "parameters": [{"name": "name", "in": "path", "required": True, "schema": schema}]}


def _post(reference: Any, kinds: Sequence[str]) -> dict[str, Any]:
    body = {"required": True, "content": {_JSON: {"schema": reference}}}
    return {"requestBody": body, "responses": _answers(*kinds), "security": _SECURITY}


def _answers(*kinds: str) -> dict[str, Any]:
    error = {"content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "200": {"description": "The answer", "content": {kind: {} for kind in kinds}},
        "default": {"description": "An error", **error},
    }
