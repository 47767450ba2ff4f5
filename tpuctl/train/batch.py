"""One batch of packed token rows on the host: what data makes and the step eats. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int32


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBatch:
    """This host's rows of one global batch.

    A row holds pieces of documents, packed end to end. ``segment_ids`` numbers the documents of a row from 1;
    0 is padding. ``positions`` restart at 0 with each document, ``loss_mask`` is 1 where ``targets`` counts.
    ``num_bytes`` is how many bytes of text the counted targets of the row stand for, so that held-out loss can
    be given in bits per byte. ``cursor`` is where each row's lane stands after this row: saved with the
    checkpoint, it makes the next batch a pure function of (dataset, seed, step).
    """

    tokens: Int32[np.ndarray, "rows seq"]
    targets: Int32[np.ndarray, "rows seq"]
    segment_ids: Int32[np.ndarray, "rows seq"]
    positions: Int32[np.ndarray, "rows seq"]
    loss_mask: Int32[np.ndarray, "rows seq"]
    num_bytes: Int32[np.ndarray, " rows"]
    cursor: Int32[np.ndarray, "rows 4"]


class BatchFeed(Protocol):
    """Where a host's batches come from. The loop knows this; Ray Data stands behind one implementation."""

    def train(self, cursor: Int32[np.ndarray, "rows 4"]) -> Iterator[HostBatch]:
        """This host's rows from ``cursor`` on (zeros: the start). Ends only where the plan sets ``epochs``;
        then it goes on with wholly masked rows, so that all hosts can agree on the end."""
        ...

    def evaluate(self) -> Iterator[HostBatch]:
        """This host's rows of the held-out text, from its start, ending in wholly masked rows for ever."""
        ...
