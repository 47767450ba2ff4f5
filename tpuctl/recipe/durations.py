"""Durations as people write them: ``90``, ``90s``, ``1h30m``."""

from __future__ import annotations

import math
import re

from tpuctl.errors import UsageError

PATTERN = r"([0-9]+(\.[0-9]+)?[dhms])+"
DURATION_SAYS = "a duration (seconds, or a string such as '90s', '30m', '2h')"

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms])")
_UNIT_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_LONGEST_SECONDS = 366 * 86_400


def duration_seconds(text: str) -> float | None:
    """Seconds in a duration; None for a text that is none. Blanks and case don't matter."""
    compact = text.replace(" ", "").lower()
    if re.fullmatch(PATTERN, compact):
        return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(compact))
    try:
        return float(compact)
    except ValueError:
        return None


def parse_duration(text: str, *, option: str) -> float:
    """Seconds in a duration given as a command-line option.

    Raises:
        UsageError: it is no duration, or not a positive one.
    """
    duration = duration_seconds(text)
    if duration is None or math.isnan(duration) or not 0 <= duration <= _LONGEST_SECONDS:
        raise UsageError(f"{option}: expected {DURATION_SAYS}, got {text!r}")
    return duration
