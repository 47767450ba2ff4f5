"""Held-out batches, read once and kept: every evaluation of a run asks for the same ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Protocol

import numpy as np
from jaxtyping import Int32

from tpuctl.train.batch import HostBatch
from tpuctl.train.data.packing import start_cursor

_KEPT_BYTES = 256 << 20


class ClosableBatches(Iterator[HostBatch], Protocol):
    """Batches from a reader that has to be ended."""

    def close(self) -> None:
        """End the reader."""
        ...


class Replay:
    """The batches of a stream from its start, as often as asked.

    Those that were taken are kept, up to ``kept_bytes``; beyond, the stream is read on from the last one's cursor.
    Starting a reader costs seconds, and an evaluation that waits for one is a stall of the training step.
    """

    def __init__(
        self,
        read: Callable[[Int32[np.ndarray, "rows 4"]], ClosableBatches],
        *,
        rows: int,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._read = read
        self._start = start_cursor(rows)
        self._kept: list[HostBatch] = []
        self._room = kept_bytes

    def batches(self) -> Generator[HostBatch]:
        """The batches, from the first."""
        cursor = self._start
        for batch in self._kept:
            yield batch
            cursor = batch.cursor
        with closing(self._read(cursor)) as source:
            for batch in source:
                self._keep(batch)
                yield batch

    def _keep(self, batch: HostBatch) -> None:
        self._room -= sum(getattr(batch, name).nbytes for name in HostBatch.__slots__)
        if self._room >= 0:
            self._kept.append(batch)
