"""One value of a model's config as what it must be: a wrong one is refused by its key, whatever it is."""

from __future__ import annotations

import math
from typing import Any

from tpuctl.errors import UsageError

# More than any model has of anything, its bound on positions too; beyond it are slips, and numbers no device can hold.
LARGEST = 2**31 - 1
_SHOWN = 60


class ModelConfigError(UsageError):
    """A model's config asks for what the decoder does not compute, or leaves out what it must say."""


def wrong(key: str, value: Any, expected: str) -> ModelConfigError:
    """The error for a value that is not what its key expects."""
    return ModelConfigError(f"{key} = {shown(value)} in the model's config: expected {expected}")


def shown(value: Any) -> str:
    """A value as a message may hold it, however large it is."""
    text = "a very large number" if isinstance(value, int) and abs(value) >= 10**_SHOWN else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def as_size(key: str, value: Any, *, least: int = 1, most: int = LARGEST) -> int:
    """A whole number from ``least`` to ``most``; raises ``ModelConfigError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise wrong(key, value, f"a whole number from {least} to {most}")
    return value


def as_number(key: str, value: Any, *, above: float) -> float:
    """A finite number above a bound, as a float; raises ``ModelConfigError`` for anything else."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        number = float(value)
    if not number > above:
        raise wrong(key, value, f"a number above {above:g}")
    return number


def as_flag(key: str, value: Any) -> bool:
    """True or false; raises ``ModelConfigError`` for anything else."""
    if not isinstance(value, bool):
        raise wrong(key, value, "true or false")
    return value


def as_word(key: str, value: Any) -> str:
    """A text; raises ``ModelConfigError`` for anything else."""
    if not isinstance(value, str):
        raise wrong(key, value, "a text")
    return value


def as_table(key: str, value: Any) -> dict[str, Any]:
    """An object; raises ``ModelConfigError`` for anything else."""
    if not isinstance(value, dict):
        raise wrong(key, value, "an object")
    return value


def as_list(key: str, value: Any) -> list[Any]:
    """A list; raises ``ModelConfigError`` for anything else."""
    if not isinstance(value, list | tuple):
        raise wrong(key, value, "a list")
    return list(value)
