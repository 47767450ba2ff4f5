"""JSON read back into dataclasses, strictly: an unknown or missing field and a value of another type are errors."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class PlanFormatError(ValueError):
    """JSON that is not a plan of this version; the message names the field."""


def decode(kind: Any, value: Any, path: str) -> Any:
    """``value``, out of JSON, as ``kind``: a dataclass, a container of them, a literal or a plain type.

    Raises:
        PlanFormatError: it is none; the message begins with ``path``.
    """
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):
        return None if value is None else decode(next(a for a in args if a is not types.NoneType), value, path)
    if origin is Literal:
        _require(value in args, path, f"one of {args}", value)
        return value
    if origin is tuple:
        _require(isinstance(value, list | tuple), path, "a list", value)
        return tuple(decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _require(isinstance(value, dict), path, "an object", value)
        return {str(key): decode(args[1], item, f"{path}.{key}") for key, item in value.items()}
    return _decode_scalar(kind, value, path)


def _decode_dataclass(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, dict), path, "an object", value)
    hints = get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    for key in value:
        if key not in names:
            raise PlanFormatError(f"{path}.{key}: unknown field")
    for name in names - value.keys():
        raise PlanFormatError(f"{path}.{name}: missing")
    return kind(**{key: decode(hints[key], item, f"{path}.{key}") for key, item in value.items()})


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    _require(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), path, kind.__name__, value)
    return value


def _require(condition: bool, path: str, expected: str, value: Any) -> None:
    if not condition:
        raise PlanFormatError(f"{path}: expected {expected}, got {value!r}")
