"""A lane: the endless sequence of documents behind one row of the global batch, and the cursor that is enough to go on.

A cursor is four numbers: how many chunks of its sequence the lane has left behind, the turn within the chunk, the
place within the document, and the epoch (told for logs; never read back). Where a dataset has changed since, a turn
or place beyond the end means the next chunk or document: a resumed run goes on, though it isn't the unbroken one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from tpuctl.train.batch import HostBatch
from tpuctl.train.data.documents import Documents, make_at
from tpuctl.train.data.faults import Faults
from tpuctl.train.data.groups import GroupCache
from tpuctl.train.data.order import ChunkOrder
from tpuctl.train.data.packing import Document, RowPacker


class Cursor(NamedTuple):
    """Where a lane stands, as it lies in ``HostBatch.cursor``."""

    step: int
    turn: int
    place: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSource:
    """What all lanes of a reader share. ``lanes`` is the number of lanes over all hosts; ``epochs`` 0: no end.

    ``faults`` counts the rows that became no document, over all of the reader's lanes.
    """

    order: ChunkOrder
    groups: GroupCache
    documents: Documents
    faults: Faults
    lanes: int
    epochs: int
    packing: bool


class Lane:
    """One lane. Its rows depend on the source, its number and its cursor, and on nothing else."""

    def __init__(self, source: LaneSource, *, number: int, cursor: Int32[np.ndarray, " 4"]) -> None:
        self._source = source
        self._number = int(number)
        self._step, self._turn, self._place = (int(value) for value in cursor[:3])
        self._document: Document | None = None

    @property
    def cursor(self) -> Cursor:
        """Where the lane stands."""
        epoch = self._source.order.epoch(self._position)
        return Cursor(step=self._step, turn=self._turn, place=self._place, epoch=min(epoch, np.iinfo(np.int32).max))

    def fill(self, batch: HostBatch, row: int) -> None:
        """Write the lane's next row and the cursor behind it. A lane that has ended leaves the row masked."""
        packer = RowPacker(batch, row)
        while packer.room and (document := self._current_document()) is not None:
            if self._source.documents.whole and document.places - self._place > packer.room and not packer.is_empty:
                break
            stop = min(document.places, self._place + packer.room)
            packer.add(document, start=self._place, stop=stop)
            self._place = stop
            if stop == document.places:
                self._next_row()
            if not self._source.packing:
                break
        batch.cursor[row] = self.cursor

    @property
    def _position(self) -> int:
        return self._number + self._step * self._source.lanes

    def _current_document(self) -> Document | None:
        while self._document is None and not self._ended():
            document = self._read()
            if document is not None and self._place < document.places:
                self._document = document
            else:
                self._next_row()
        return self._document

    def _ended(self) -> bool:
        return self._source.epochs > 0 and self._source.order.epoch(self._position) >= self._source.epochs

    def _read(self) -> Document | None:
        """The document at the cursor; None for a row that becomes none and beyond the chunk's last row."""
        order = self._source.order
        chunk = order.chunk(self._position)
        if self._turn >= chunk.rows:
            return None
        row = chunk.start + order.row(self._position, chunk, self._turn)
        text = self._source.groups.text(self._number, file=chunk.file, group=chunk.group, row=row)
        place = self._source.groups.place(file=chunk.file, group=chunk.group, row=row)
        made = make_at(self._source.documents, text, place=place)
        if made.fault is not None:
            self._source.faults.note(made.fault, place=place, detail=made.detail)
        return made.document

    def _next_row(self) -> None:
        self._document = None
        self._place = 0
        self._turn += 1
        if self._turn >= self._source.order.chunk(self._position).rows:
            self._turn = 0
            self._step += 1
