"""Compiling all that an engine's steps may need, before anybody waits for one."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.engine.engine import Engine
from tpuctl.engine.options import buckets


def warm_up(engine: Engine, *, tell: Callable[..., None]) -> None:
    """Compile every shape of a step, and tell of each: a phase's name and its fields."""
    count = len(buckets(engine.options))
    for number, shape in enumerate(engine.warm_up(), start=1):
        bucket = shape.bucket
        detail = f"{number} of {count} shapes: {bucket.tokens} tokens, {bucket.rows} rows"
        tell("compiled", seconds=shape.seconds, detail=detail)
