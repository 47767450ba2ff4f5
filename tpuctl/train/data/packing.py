"""Documents into rows of a fixed length.

A text of n ids takes n + 1 places: ``tokens`` are the separator and the ids, ``targets`` the ids and the
separator. So every id is predicted, the first one too, and so is the end; nothing is predicted across documents;
and a document that is cut at a row's end loses no target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Int32

from tpuctl.text import Encoded
from tpuctl.train.batch import HostBatch

CURSOR_FIELDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One document in the places it takes.

    ``loss_mask`` is 1 where the target counts. ``num_bytes`` are the bytes of the targets that do; an end has none.
    """

    tokens: Int32[np.ndarray, " places"]
    targets: Int32[np.ndarray, " places"]
    num_bytes: Int32[np.ndarray, " places"]
    loss_mask: Int32[np.ndarray, " places"]

    @property
    def places(self) -> int:
        """Row places the document takes."""
        return len(self.tokens)

    @classmethod
    def of(cls, encoded: Encoded, *, separator_id: int) -> Self:
        """The document of an encoded text."""
        separator = np.array([separator_id], dtype=np.int32)
        return cls(
            tokens=np.concatenate([separator, encoded.ids]),
            targets=np.concatenate([encoded.ids, separator]),
            num_bytes=np.concatenate([encoded.num_bytes, np.zeros(1, np.int32)]),
            loss_mask=np.ones(len(encoded.ids) + 1, np.int32),
        )

    def first(self, places: int) -> Self:
        """The document cut to its first ``places``."""
        return replace(
            self,
            tokens=self.tokens[:places],
            targets=self.targets[:places],
            num_bytes=self.num_bytes[:places],
            loss_mask=self.loss_mask[:places],
        )


class RowPacker:
    """Fills one row of a batch from the left. What isn't filled stays zero: padding that counts for nothing."""

    def __init__(self, batch: HostBatch, row: int) -> None:
        self._batch = batch
        self._row = row
        self._filled = 0
        self._segment = 0

    @property
    def room(self) -> int:
        """Places left."""
        return int(self._batch.tokens.shape[1]) - self._filled

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been added."""
        return self._filled == 0

    def add(self, document: Document, *, start: int, stop: int) -> None:
        """Append places ``start`` to ``stop`` of a document as a segment of its own, positions from 0."""
        row, batch = self._row, self._batch
        places = slice(self._filled, self._filled + stop - start)
        self._segment += 1
        self._filled = places.stop
        batch.tokens[row, places] = document.tokens[start:stop]
        batch.targets[row, places] = document.targets[start:stop]
        batch.segment_ids[row, places] = self._segment
        batch.positions[row, places] = np.arange(stop - start, dtype=np.int32)
        batch.loss_mask[row, places] = document.loss_mask[start:stop]
        batch.num_bytes[row] += document.num_bytes[start:stop].sum()


def empty_batch(rows: int, *, sequence_length: int) -> HostBatch:
    """A batch of nothing but padding, to be filled."""

    def zeros() -> Int32[np.ndarray, "rows seq"]:
        return np.zeros((rows, sequence_length), np.int32)

    return HostBatch(
        tokens=zeros(),
        targets=zeros(),
        segment_ids=zeros(),
        positions=zeros(),
        loss_mask=zeros(),
        num_bytes=np.zeros(rows, np.int32),
        cursor=np.zeros((rows, CURSOR_FIELDS), np.int32),
    )


def start_cursor(rows: int) -> Int32[np.ndarray, "rows 4"]:
    """The cursor of ``rows`` lanes that have read nothing."""
    return np.zeros((rows, CURSOR_FIELDS), np.int32)


def concatenate(batches: list[HostBatch]) -> HostBatch:
    """The rows of several batches one below the other."""
    if len(batches) == 1:
        return batches[0]
    return HostBatch(**{name: np.concatenate([getattr(b, name) for b in batches]) for name in HostBatch.__slots__})
