"""One value against one key: type, range, choices. Values come typed from TOML or as text from ``--set``."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from typing import Any

from tpuctl.recipe.durations import DURATION_SAYS, duration_seconds
from tpuctl.recipe.settings import LARGEST_INT, Key, range_text

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER = re.compile(r"[+-]?[0-9][0-9_]*")
# In place of a number of so many digits that Python itself declines to read it.
_HUGE = LARGEST_INT**4
# What text of several lines may have besides printable characters.
_LAYOUT = dict.fromkeys(map(ord, "\n\r\t"))
_SHOWN = 60


class BadValueError(ValueError):
    """A value a key doesn't take; ``hint`` says how to write it, ``entry`` which entry of a map it is."""

    def __init__(self, message: str, *, hint: str | None = None, entry: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.entry = entry


def check_value(key: Key, value: Any) -> Any:
    """A TOML value as the key's type.

    Raises:
        BadValueError: wrong type (nothing is converted but whole numbers to floats), range or choice.
    """
    return _CHECKS[key.type](key, value)


def parse_text(key: Key, text: str) -> Any:
    """The value that ``--set key=text`` means, typed by the key and then checked like one from TOML.

    Raises:
        BadValueError: the text doesn't read as the key's type.
    """
    stripped = text.strip()
    if key.type in ("str", "choice"):
        return check_value(key, _unquoted(stripped))
    if key.type == "command" and not stripped.startswith("["):
        return check_value(key, stripped)
    if key.type == "list" and not stripped.startswith("["):
        return check_value(key, [part.strip() for part in stripped.split(",") if part.strip()])
    if key.type == "float" and _reads_as_number(stripped):
        return check_value(key, float(stripped))
    if key.type == "duration" and not _reads_as_number(stripped):
        return check_value(key, _unquoted(stripped))
    try:
        value = tomllib.loads(f"value = {stripped.lower() if key.type == 'bool' else stripped}")["value"]
    except (ValueError, KeyError):  # TOML's own errors are ValueErrors, as is a number of thousands of digits
        value = _HUGE if _INTEGER.fullmatch(stripped) else stripped
    return check_value(key, value)


def expected(key: Key) -> str:
    """What a key wants, in words: ``"a whole number, at least 1"``."""
    if key.type == "choice":
        return f"one of {', '.join(repr(choice) for choice in key.choices)}"
    words = _WORDS[key.type] + (f" of {key.rules.unit}" if key.rules.unit else "")
    bounds = range_text(key.rules)
    return f"{words}, {bounds}" if bounds else words


def sample(key: Key) -> str:
    """A value that a key does take, as ``--set`` would give it; else what it is for."""
    shown = key.rules.example or ("" if key.default in (None, (), {}) else str(key.default))
    if not shown or key.type in ("choice", "bool"):
        return key.rules.doc
    return f"as in --set {key.path}={shlex.quote(shown)}"


def described(key: Key, value: Any) -> str:
    """A value for an error message; never that of a secret."""
    if key.rules.secret or key.path == "job.env":
        return f"a {_kind_of(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
        return f'the string "{shown}"'
    if isinstance(value, int | float):
        return "a huge number" if isinstance(value, int) and abs(value) > LARGEST_INT**2 else f"{value}"
    return f"a {_kind_of(value)}"


def _kind_of(value: Any) -> str:
    kinds: dict[type, str] = {
        dict: "table",
        list: "list",
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
    }
    return kinds.get(type(value), "date or time")


def _wrong(key: Key, value: Any, hint: str | None = None) -> BadValueError:
    return BadValueError(f"expected {expected(key)}, got {described(key, value)}", hint=hint)


def _check_int(key: Key, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        raise _wrong(key, value, hint=f"write {key.name} = {value:.0f}, without a decimal point or exponent")
    if isinstance(value, str) and _reads_as_number(value):
        raise _wrong(key, value, hint=f"write {key.name} = {value.strip()}, without quotes")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, value)
    _check_range(key, value)
    return value


def _check_float(key: Key, value: Any) -> float:
    if isinstance(value, str) and _reads_as_number(value):
        raise _wrong(key, value, hint=f"write {key.name} = {value.strip()}, without quotes")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, value)
    _check_range(key, value)
    return float(value)


def _check_bool(key: Key, value: Any) -> bool:
    if not isinstance(value, bool):
        hint = (
            f"write {key.name} = {value.lower()}, without quotes" if str(value).lower() in ("true", "false") else None
        )
        raise _wrong(key, value, hint=hint)
    return value


def _check_str(key: Key, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, hint=f'write it in quotes: {key.name} = "…"')
    if not value.strip():
        raise BadValueError("must not be empty", hint="leave the key out for its default" if not key.required else None)
    if not _is_clean(key, value):
        which = "control characters" if key.rules.multiline else "line breaks or other control characters"
        raise BadValueError(f"must not have {which}")
    if key.rules.pattern and not re.fullmatch(key.rules.pattern, value):
        raise BadValueError(f"expected {key.rules.pattern_says}, got {described(key, value)}")
    return value


def _is_clean(key: Key, text: str) -> bool:
    """Printable and not blank; text of several lines may be laid out, or be layout alone."""
    if key.rules.multiline:
        return bool(text) and text.translate(_LAYOUT).isprintable()
    return bool(text.strip()) and text.isprintable()


def _check_choice(key: Key, value: Any) -> str:
    if value not in key.choices or not isinstance(value, str):
        raise _wrong(key, value)
    return value


def _check_duration(key: Key, value: Any) -> float:
    if isinstance(value, str):
        seconds = duration_seconds(value)
        if seconds is None:
            raise _wrong(key, value, hint="write e.g. 90, '90s', '30m' or '1h30m'")
        value = seconds
    return _check_float(key, value)


def _check_list(key: Key, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(key, value, hint=f'write {key.name} = ["…"]')
    for item in value:
        if not isinstance(item, str) or not _is_clean(key, item):
            raise BadValueError(f"expected a list of strings, got {described(key, item)} in it")
    if key.name == "pass_env":
        for item in value:
            _check_variable(item, entry=None)
    return tuple(value)


def _check_command(key: Key, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise BadValueError(f"can't be cut into words: {str(error).lower()}", hint="close it") from None
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = value
    else:
        raise _wrong(key, value, hint=f'write {key.name} = "…" or {key.name} = ["…", "…"]')
    if not words or not words[0].strip():
        raise BadValueError("names no program", hint="the first word is the program")
    if any("\0" in word for word in words):
        raise BadValueError("must not have NUL characters")
    return tuple(words)


def _check_map(key: Key, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong(key, value, hint=f'write [{key.path}] and under it NAME = "value"')
    for name, item in value.items():
        _check_name(key, name)
        if not isinstance(item, str):
            hint = f"write {name} in quotes" if not isinstance(item, dict | list) else None
            raise BadValueError(f"expected a string, got a {_kind_of(item)}", hint=hint, entry=name)
        if "\0" in item:
            raise BadValueError("must not have NUL characters", entry=name)
    return dict(value)


def _check_name(key: Key, name: str) -> None:
    """The name of an entry of a map."""
    if not key.rules.pattern:
        _check_variable(name, entry=name)
    elif not re.fullmatch(key.rules.pattern, name):
        raise BadValueError(f"{name!r} is no such name: expected {key.rules.pattern_says}", entry=name)


def _check_variable(name: str, *, entry: str | None) -> None:
    if not _VARIABLE.fullmatch(name):
        message = f"{name!r} is no name of an environment variable"
        raise BadValueError(message, hint="letters, digits and '_', not beginning with a digit", entry=entry)


def _check_range(key: Key, value: float) -> None:
    rules = key.rules
    too_low = (rules.minimum is not None and value < rules.minimum) or (
        rules.above is not None and value <= rules.above
    )
    too_high = (rules.maximum is not None and value > rules.maximum) or (
        rules.below is not None and value >= rules.below
    )
    huge = isinstance(value, int) and abs(value) > LARGEST_INT**3  # int → float would overflow
    if too_high and rules.maximum == LARGEST_INT:
        raise _wrong(key, value, hint=f"at most {LARGEST_INT}")
    if too_low or too_high or huge or not math.isfinite(value):
        raise _wrong(key, value)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "duration": DURATION_SAYS,
    "list": "a list of strings",
    "map": "a table of strings",
    "command": "a command line, or a list of its words",
}
_CHECKS = {
    "int": _check_int,
    "float": _check_float,
    "bool": _check_bool,
    "str": _check_str,
    "choice": _check_choice,
    "duration": _check_duration,
    "list": _check_list,
    "map": _check_map,
    "command": _check_command,
}
