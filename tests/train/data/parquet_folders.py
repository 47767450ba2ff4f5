"""Small parquet folders, and streams over them, for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.text.place import TokenizerRef
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.feed import LocalFeed
from tpuctl.train.data.packing import start_cursor
from tpuctl.train.data.stream import Stream

BYTES = TokenizerRef(name="bytes", directory="/nowhere", vocab_size=257)
SEPARATOR_ID = 256


def write(path: Path, texts: Sequence[str | None], *, rows_per_group: int = 4) -> Path:
    """A parquet file of one string column, ``text``."""
    return write_table(path, {"text": pa.array(texts, pa.string())}, rows_per_group=rows_per_group)


def write_table(path: Path, columns: dict[str, pa.Array], *, rows_per_group: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def words(rng: np.random.Generator, rows: int, *, longest: int = 60) -> list[str]:
    """Distinct texts of many lengths, some of them not ASCII."""
    alphabet = [*list("abcdefgh ij"), "é", "漢", "🙂"]
    return [f"{row}:" + "".join(rng.choice(alphabet, rng.integers(0, longest))) for row in range(rows)]


def stream_over(folder: Path, **changes: Any) -> Stream:
    stream = Stream(
        corpus=open_corpus(str(folder), columns=Columns.text("text")),
        tokenizer=BYTES,
        lanes=4,
        sequence_length=16,
        packing=True,
        epochs=0,
        shuffle=True,
        seed=7,
    )
    return replace(stream, **changes)


def take(stream: Stream, steps: int, *, rows: Iterable[int] | None = None, cursor: Any = None) -> list[HostBatch]:
    """The first steps of a stream, of all rows or of some."""
    rows = tuple(range(stream.lanes) if rows is None else rows)
    feed = LocalFeed(stream, held_out=None, rows=rows, prefetch=0)
    batches = feed.train(start_cursor(len(rows)) if cursor is None else cursor)
    return [next(batches) for _ in range(steps)]


def take_all(stream: Stream) -> list[HostBatch]:
    """Every batch of a finite stream that holds anything."""
    batches = LocalFeed(stream, held_out=None, rows=range(stream.lanes), prefetch=0).train(start_cursor(stream.lanes))
    taken = []
    while (batch := next(batches)).loss_mask.any():
        taken.append(batch)
    return taken


def lane_documents(batches: Sequence[HostBatch], row: int) -> list[bytes]:
    """The documents a lane of the bytes tokenizer has predicted, put together from its rows; the last may be cut."""
    predicted = np.concatenate([batch.targets[row][batch.loss_mask[row] == 1] for batch in batches])
    ends = np.flatnonzero(predicted == SEPARATOR_ID)
    pieces = np.split(predicted, ends + 1)
    return [bytes(piece[piece != SEPARATOR_ID].tolist()) for piece in pieces if piece.size]


def assert_equal(found: HostBatch, expected: HostBatch) -> None:
    for name in HostBatch.__slots__:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def rows_of(batch: HostBatch, rows: Sequence[int]) -> HostBatch:
    return HostBatch(**{name: getattr(batch, name)[list(rows)] for name in HostBatch.__slots__})
