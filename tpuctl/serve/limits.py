"""How much one key may ask: requests in a second, and requests at once."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tpuctl.serve.protocol.errors import too_fast, too_many_at_once


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyLimits:
    """Of each key; None is without a limit. What is not asked in a second may be asked in the next."""

    requests_per_second: float | None = None
    concurrent: int | None = None


class Limiter:
    """Counts what each key has under way and has asked lately. Lives on the event loop."""

    def __init__(self, limits: KeyLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._under_way: defaultdict[bytes, int] = defaultdict(int)
        self._saved: dict[bytes, tuple[float, float]] = {}

    def admit(self, key: bytes | None) -> Callable[[], None]:
        """Let a request of a key in; to be called once it has ended.

        Raises:
            ApiError: The key has asked too much.
        """
        if key is None:
            return _nothing
        most = self._limits.concurrent
        if most is not None and self._under_way[key] >= most:
            raise too_many_at_once(most)
        self._spend(key)
        self._under_way[key] += 1
        return partial(self._release, key)

    def _spend(self, key: bytes) -> None:
        """Take one of what the key has saved up."""
        rate = self._limits.requests_per_second
        if rate is None:
            return
        now, most = self._clock(), max(1.0, rate)
        saved, then = self._saved.get(key, (most, now))
        saved = min(most, saved + (now - then) * rate)
        if saved < 1:
            raise too_fast(rate, retry_seconds=math.ceil((1 - saved) / rate))
        self._saved[key] = (saved - 1, now)

    def _release(self, key: bytes) -> None:
        self._under_way[key] -= 1


def _nothing() -> None:
    pass
