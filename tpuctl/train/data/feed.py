"""What the training loop holds: a feed in this process, and the rule for the last, partial batch."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Literal

import numpy as np
from jaxtyping import Int32

from tpuctl.errors import DataError
from tpuctl.plan.schema import RaggedRule
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.prefetch import prefetched
from tpuctl.train.data.stream import Piece, Stream, read_stream, start_cursor

_log = logging.getLogger(__name__)

RaggedDecision = Literal["train", "stop"]


class LocalFeed:
    """Batches read in this process: a ``BatchFeed`` without Ray, for tests and for use as a library.

    ``rows`` are the numbers of the global batch's rows that this host holds. ``prefetch`` batches are made ahead
    in a thread; 0 makes each when it is asked for.
    """

    def __init__(self, train: Stream, *, held_out: Stream | None, rows: Sequence[int], prefetch: int = 2) -> None:
        self._train = train
        self._held_out = held_out
        self._rows = tuple(rows)
        self._prefetch = prefetch

    def train(self, cursor: Int32[np.ndarray, "rows 4"]) -> Iterator[HostBatch]:
        """This host's rows from ``cursor`` on; see ``BatchFeed``."""
        return self._read(self._train, cursor)

    def evaluate(self) -> Iterator[HostBatch]:
        """This host's rows of the held-out text; see ``BatchFeed``."""
        return self._read(require_held_out(self._held_out), start_cursor(len(self._rows)))

    def _read(self, stream: Stream, cursor: Int32[np.ndarray, "rows 4"]) -> Iterator[HostBatch]:
        batches = batches_of(read_stream(stream, lanes=self._rows, cursor=cursor), uri=stream.corpus.uri)
        return prefetched(batches, depth=self._prefetch) if self._prefetch else batches


def batches_of(pieces: Generator[Piece], *, uri: str) -> Generator[HostBatch]:
    """The batches of the pieces; rows without text are told when first met and each time their number has doubled."""
    told = 0
    with closing(pieces):
        for piece in pieces:
            if piece.skipped_rows >= max(1, 2 * told):
                told = piece.skipped_rows
                _log.warning("%s: %d rows without text skipped so far on this host", uri, told)
            yield piece.batch


def require_held_out(stream: Stream | None) -> Stream:
    """The held-out stream.

    Raises:
        DataError: the recipe names none.
    """
    if stream is None:
        raise DataError("there is no held-out text to evaluate on", hint="set data.eval_uri")
    return stream


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
