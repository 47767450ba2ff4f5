"""Reading a request's body: strictly, and with an error that names the field by the path a client knows it by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from tpuctl.serve.protocol.errors import ApiError


class Body(BaseModel):
    """A JSON object of a request: no further keys, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


def parse_body[B: Body](kind: type[B], data: bytes) -> B:
    """The body that these bytes hold.

    Raises:
        ApiError: They are no JSON, or the first field at fault.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _explained(error.errors(include_url=False, include_input=True)[0]) from None


def refused(why: str, *, neutral: tuple[Any, ...] = ()) -> Any:
    """The type of a documented field that can't be honoured: only null, and values that ask for nothing, pass."""

    def check(value: Any) -> Any:
        # 0 == False and 1 == True in Python, not in JSON.
        if value is None or any(value == item and type(value) is type(item) for item in neutral):
            return None
        raise ValueError(why)

    return Annotated[None, BeforeValidator(check), WithJsonSchema({"enum": [None, *neutral]})]


def checked(kind: Any, check: Callable[[Any], Any], *, schema: dict[str, Any] | None = None) -> Any:
    """The type of a field whose JSON has several forms; ``check`` makes one of them, or raises ``ValueError``.

    ``schema`` describes the forms where ``kind`` does not.
    """
    described = () if schema is None else (WithJsonSchema(schema),)
    return Annotated[kind, BeforeValidator(check), *described]


def path_of(parts: Iterable[str | int]) -> str:
    """``("messages", 0, "content")`` as ``messages[0].content``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _explained(error: ErrorDetails) -> ApiError:
    param = path_of(error["loc"]) or None
    kind, message = error["type"], error["msg"]
    if kind == "json_invalid":
        return ApiError(f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}", code="invalid_json")
    if param is None:
        said = message.removeprefix("Value error, ")
        return ApiError(said if kind == "value_error" else "the body must be a JSON object", code="invalid_value")
    if kind == "extra_forbidden":
        return ApiError(f"{param}: no such field", param=param, code="unknown_parameter")
    if kind == "missing":
        return ApiError(f"{param}: missing", param=param, code="missing_required_parameter")
    if kind == "value_error":
        return ApiError(f"{param}: {message.removeprefix('Value error, ')}", param=param, code="invalid_value")
    return ApiError(f"{param}: {message}, got {_short(error['input'])}", param=param, code="invalid_value")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
