"""The held-out loss: the same number of batches on every host, whatever each of them still has to give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax

from tpuctl.train.batch import BatchFeed
from tpuctl.train.batches import reading
from tpuctl.train.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Means over held-out text. ``loss`` is in nats per token; ``tokens`` and ``bytes`` are what it was taken over."""

    step: int
    loss: float
    bits_per_byte: float
    tokens: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """Evaluates on at most ``max_batches`` batches; 0 is all of the held-out text. ``beat`` is told of each batch."""

    program: Program
    feed: BatchFeed
    max_batches: int
    beat: Callable[[], None]

    def evaluate(self, step: int, params: Any) -> Evaluation | None:
        """The held-out loss of ``params``, or None where there is no held-out token on any host."""
        nats, tokens, num_bytes = 0.0, 0, 0
        for sums in self._sums(params):
            nats += float(sums["nats"])
            tokens += int(sums["tokens"])
            num_bytes += int(sums["bytes"])
        if tokens == 0:
            return None
        bits = nats / math.log(2) / num_bytes if num_bytes else math.nan
        return Evaluation(step=step, loss=nats / tokens, bits_per_byte=bits, tokens=tokens, bytes=num_bytes)

    def _sums(self, params: Any) -> Iterator[Mapping[str, Any]]:
        """The sums of each batch that has tokens. They are global sums, so all hosts end after the same batch."""
        with reading(self.feed.evaluate()) as batches:
            ahead = None
            for batch in islice(batches, self.max_batches or None):
                current, ahead = ahead, self.program.eval_step(params, self.program.assemble(batch, False))
                if current is not None:
                    sums = self._fetched(current)
                    if not sums["tokens"]:
                        return
                    yield sums
            if ahead is not None:
                yield self._fetched(ahead)

    def _fetched(self, sums: Any) -> Mapping[str, Any]:
        values: Mapping[str, Any] = jax.device_get(sums)
        self.beat()
        return values
