"""How fast training goes, and where its time goes. Knows a clock and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Means over the steps since the last report; ``data_stall`` is the share of time spent waiting for batches."""

    tokens_per_second: float
    step_seconds: float
    data_stall: float


class Meter:
    """Counts steps and tokens between reports. Time spent aside (held-out evaluation, saving) does not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._restart()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Time that is not training."""
        began = self._clock()
        yield
        self._aside_seconds += self._clock() - began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent waiting for the next batch."""
        began = self._clock()
        yield
        self._waited_seconds += self._clock() - began

    def count(self, *, tokens: int) -> None:
        """One more step is done."""
        self._steps += 1
        self._tokens += tokens

    def report(self) -> Speed:
        """The speed since the last report; begins a new one."""
        seconds = max(self._clock() - self._began - self._aside_seconds, 1e-9)
        speed = Speed(
            tokens_per_second=self._tokens / seconds,
            step_seconds=seconds / max(self._steps, 1),
            data_stall=min(self._waited_seconds / seconds, 1.0),
        )
        self._restart()
        return speed

    def _restart(self) -> None:
        self._began = self._clock()
        self._aside_seconds = 0.0
        self._waited_seconds = 0.0
        self._steps = 0
        self._tokens = 0
