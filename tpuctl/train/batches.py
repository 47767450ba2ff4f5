"""From a host's batches to global ones: one step ahead of the devices, and with one end for all hosts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32

from tpuctl.errors import DataError
from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.agreement import HostSum
from tpuctl.train.batch import BatchFeed, HostBatch
from tpuctl.train.data.feed import ragged_decision, valid_rows
from tpuctl.train.meter import Meter
from tpuctl.train.program import Program
from tpuctl.train.stopping import StopPoll


@contextmanager
def reading(batches: Iterator[HostBatch]) -> Iterator[Iterator[HostBatch]]:
    """Ends the threads of a feed's iterator, where it has any, when it is no longer read."""
    try:
        yield batches
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalBatch:
    """A batch on the devices. ``epoch`` is how often this host's data has begun anew."""

    arrays: Any
    epoch: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A host's batch, and how many rows of the global one hold text: a promise, where the data has an end."""

    batch: HostBatch
    valid_rows: Any


class GlobalBatches:
    """The training batches from a cursor on.

    Where the data has an end (``epochs``), the hosts reach it at different batches. So each batch is read one ahead
    of its use, and the number of its rows that hold text is summed over the hosts in the devices' queue, before the
    step that precedes it: the sum is there when the decision is due, and no device waits for it.
    """

    def __init__(self, plan: TrainingPlan, program: Program, *, feed: BatchFeed, stop: StopPoll) -> None:
        self._plan = plan
        self._program = program
        self._feed = feed
        self._stop = stop
        self._sum = HostSum(program.mesh) if plan.data.epochs else None
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="first-batch")
        self._first: Any = None
        self._batches: Iterator[HostBatch] = iter(())
        self._ahead: _Read | None = None

    def start(self, cursor: Int32[np.ndarray, "rows 4"]) -> None:
        """Begin to read, in a thread: the first batch may take seconds, which compilation can hide."""
        self._batches = self._feed.train(cursor)
        self._first = self._starter.submit(next, self._batches)

    def next(self, meter: Meter) -> GlobalBatch | None:
        """The next batch, on its way to the devices; None at the end of the data, on all hosts alike.

        Raises:
            DataError: The last batch is partial and ``data.ragged`` is ``raise``.
        """
        with meter.waiting():
            current = self._ahead or self._read()
            self._ahead = self._read() if self._sum is not None else None
        if self._sum is not None and self._is_end(current):
            return None
        arrays = self._program.assemble(current.batch, self._stop() is not None)
        return GlobalBatch(arrays=arrays, epoch=int(current.batch.cursor[:, 3].max()))

    def close(self) -> None:
        """End the feed's threads."""
        self._starter.shutdown(wait=True)
        with reading(self._batches):
            pass

    def _read(self) -> _Read:
        if self._first is not None:
            first, self._first = self._first, None
            batch = first.result()
        else:
            batch = next(self._batches, None)
        if batch is None:
            raise DataError("the data feed of this host ended, though a feed goes on with masked rows")
        return _Read(batch, None if self._sum is None else self._sum(valid_rows(batch)))

    def _is_end(self, read: _Read) -> bool:
        rows, rule = self._plan.train.global_batch, self._plan.data.ragged
        # Where the tensor axis spans hosts, several hosts hold, and count, the same rows.
        copies = jax.process_count() * len(read.batch.num_bytes) // rows
        return ragged_decision(int(read.valid_rows) // copies, global_batch=rows, rule=rule) == "stop"


def local_rows(array: jax.Array) -> np.ndarray:
    """This host's rows of an array that is split over its first axis, in order and each once."""
    shards = {_bounds(shard.index, array.shape): shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[bounds]) for bounds in sorted(shards)])


def first_cursor(abstract: jax.ShapeDtypeStruct) -> np.ndarray:
    """The cursor of this host's lanes at the start of the data, for the whole cursor's shape and sharding."""
    slices = abstract.sharding.addressable_devices_indices_map(abstract.shape).values()
    rows = sum(stop - start for start, stop in {_bounds(index, abstract.shape) for index in slices})
    return np.zeros((rows, *abstract.shape[1:]), abstract.dtype)


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[int, int]:
    start, stop, _ = index[0].indices(shape[0])
    return start, stop
