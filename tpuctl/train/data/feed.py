"""What the training loop holds: feeds, the one in this process, and the rule for the last, partial batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal, Protocol, Self

import numpy as np
from jaxtyping import Int32

from tpuctl.errors import DataError
from tpuctl.plan.train_schema import RaggedRule
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.faults import FaultLog
from tpuctl.train.data.packing import concatenate
from tpuctl.train.data.prefetch import Prefetched
from tpuctl.train.data.replay import Replay
from tpuctl.train.data.stream import Piece, Stream, read_stream

RaggedDecision = Literal["train", "stop"]


class Reader(Protocol):
    """Steps of some lanes, one after the other."""

    def __next__(self) -> Piece:
        """The next step."""
        ...

    def close(self) -> None:
        """End the reader."""
        ...


class Batches:
    """The batches whose rows come, in this order, from several readers side by side.

    Rows that become nothing are told when they are first met and each time their number has doubled. ``close`` ends
    the readers, as an error does.
    """

    def __init__(self, readers: Sequence[Reader], *, uri: str) -> None:
        self._readers = readers
        self._faults = FaultLog(uri)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HostBatch:
        with ExitStack() as on_error:
            on_error.callback(self.close)
            pieces = [next(reader) for reader in self._readers]
            on_error.pop_all()
        self._faults.tell(np.sum([piece.faults for piece in pieces], axis=0))
        return concatenate([piece.batch for piece in pieces])

    def close(self) -> None:
        """End the readers; may be called twice."""
        for reader in self._readers:
            reader.close()


class StreamFeed(ABC):
    """A ``BatchFeed`` of a training and a held-out stream; where they are read is up to the kind of feed.

    ``rows`` are the numbers of the global batch's rows that this host holds.
    """

    def __init__(self, train: Stream, *, held_out: Stream | None, rows: Sequence[int]) -> None:
        self.rows = tuple(rows)
        self._train = train
        self._held_out = None if held_out is None else Replay(partial(self.read, held_out), rows=len(self.rows))

    @abstractmethod
    def read(self, stream: Stream, cursor: Int32[np.ndarray, "rows 4"]) -> Batches:
        """This host's rows of a stream, from ``cursor`` on. Reading begins at once, before the first is asked for."""

    def train(self, cursor: Int32[np.ndarray, "rows 4"]) -> Batches:
        """This host's rows from ``cursor`` on; see ``BatchFeed``. Starting a reader takes time, so call it early."""
        return self.read(self._train, cursor)

    def evaluate(self) -> Generator[HostBatch]:
        """This host's rows of the held-out text; see ``BatchFeed``.

        Raises:
            DataError: the recipe names no held-out text.
        """
        if self._held_out is None:
            raise DataError("there is no held-out text to evaluate on", hint="set data.eval_uri")
        return self._held_out.batches()


class LocalFeed(StreamFeed):
    """Batches read in this process: a feed without Ray, for tests and for use as a library.

    ``prefetch`` batches are made ahead in a thread; 0 makes each when it is asked for.
    """

    def __init__(self, train: Stream, *, held_out: Stream | None, rows: Sequence[int], prefetch: int = 2) -> None:
        super().__init__(train, held_out=held_out, rows=rows)
        self._prefetch = prefetch

    def read(self, stream: Stream, cursor: Int32[np.ndarray, "rows 4"]) -> Batches:
        """This host's rows of a stream, from one reader."""
        pieces = read_stream(stream, lanes=self.rows, cursor=cursor)
        reader: Reader = Prefetched(pieces, depth=self._prefetch) if self._prefetch else pieces
        return Batches([reader], uri=stream.corpus.uri)


def valid_rows(batch: HostBatch) -> int:
    """Rows of the batch that hold any target; to be summed over hosts for ``ragged_decision``."""
    return int(batch.loss_mask.any(axis=1).sum())


def ragged_decision(valid: int, *, global_batch: int, rule: RaggedRule) -> RaggedDecision:
    """What to do with a batch of which ``valid`` rows, over all hosts, hold text. Pure: all hosts decide alike.

    A full batch is trained on, one that is all padding never. In between, at the end of a finite stream, lanes have
    begun to end: ``drop`` stops there, ``pad`` goes on until the last lane has ended.

    Raises:
        DataError: the rule is ``raise`` and the batch is partial.
    """
    if valid == global_batch:
        return "train"
    if valid == 0 or rule == "drop":
        return "stop"
    if rule == "pad":
        return "train"
    raise DataError(
        f"the last batch holds {valid} of {global_batch} rows, and data.ragged is 'raise'",
        hint="set data.ragged to 'drop' or 'pad', or data.epochs to 0 to go on from the start",
    )
