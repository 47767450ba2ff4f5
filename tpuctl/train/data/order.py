"""Which rows come when: the corpus cut into chunks, and each epoch's permutation of chunks and of rows in a chunk.

Pure arithmetic on the corpus index. NumPy's own shuffles may change between its versions; a run that is resumed
years later must not, so the permutations here are sorts by a hash that is written down in this file.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from tpuctl.train.data.corpus import Corpus

# Enough that lanes end an epoch at nearly the same time, few enough that a chunk of a large corpus is a whole row
# group and is decoded once.
CHUNKS_PER_LANE = 16

_KEPT_PERMUTATIONS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """``rows`` consecutive rows of one row group, from row ``start`` of the group. ``number`` is its place on disk."""

    number: int
    file: int
    group: int
    start: int
    rows: int


class ChunkOrder:
    """The endless sequence of chunks: epoch after epoch, each in its own order.

    Position p is place ``p % num_chunks`` of epoch ``p // num_chunks``. Lane l of B reads positions l, l + B, l + 2B
    and so on, so that every lane is fed for ever by any corpus, however few rows it has.
    """

    def __init__(self, corpus: Corpus, *, lanes: int, seed: int, shuffle: bool) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._table = _cut(corpus, lanes=lanes)
        self._permutations: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()

    @property
    def num_chunks(self) -> int:
        """Chunks of one epoch."""
        return len(self._table)

    def epoch(self, position: int) -> int:
        """The epoch a position is in, from 0."""
        return position // self.num_chunks

    def chunk(self, position: int) -> Chunk:
        """The chunk at a position."""
        epoch, place = divmod(position, self.num_chunks)
        number = int(self._places(epoch)[place])
        file, group, start, rows = (int(value) for value in self._table[number])
        return Chunk(number=number, file=file, group=group, start=start, rows=rows)

    def row(self, position: int, chunk: Chunk, turn: int) -> int:
        """The row of the chunk (from 0) that is read as number ``turn`` at this position."""
        if not self._shuffle:
            return turn
        key = (self.epoch(position), chunk.number)
        return int(self._permutation(chunk.rows, key)[turn])

    def _places(self, epoch: int) -> Int64[np.ndarray, " chunks"]:
        if self._shuffle:
            return self._permutation(self.num_chunks, (epoch,))
        # Begun one chunk later each epoch: otherwise few chunks on many lanes tie a lane to one chunk for ever.
        return np.roll(np.arange(self.num_chunks), -epoch)

    def _permutation(self, size: int, key: tuple[int, ...]) -> Int64[np.ndarray, " size"]:
        if key not in self._permutations:
            self._permutations[key] = permutation(size, self._seed, *key)
        self._permutations.move_to_end(key)
        while len(self._permutations) > _KEPT_PERMUTATIONS:
            self._permutations.popitem(last=False)
        return self._permutations[key]


def permutation(size: int, *key: int) -> Int64[np.ndarray, " size"]:
    """A permutation of ``range(size)`` that depends on the key alone: the order of hashes of key and number."""
    numbers = ",".join(str(int(number)) for number in key)
    digest = hashlib.blake2b(numbers.encode(), digest_size=8).digest()
    return np.argsort(_splitmix64(np.uint64(int.from_bytes(digest, "little")), size), kind="stable")


def _splitmix64(start: np.uint64, size: int) -> np.ndarray:
    """The first numbers of the SplitMix64 generator (Steele, Lea, Flood 2014), which never repeats within 2**64."""
    with np.errstate(over="ignore"):
        state = start + np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _cut(corpus: Corpus, *, lanes: int) -> Int64[np.ndarray, "chunks 4"]:
    """Rows of (file, group, start, rows). A group is cut evenly, and not at all if there are many of its size."""
    target_rows = max(1.0, corpus.num_rows / (CHUNKS_PER_LANE * lanes))
    table = []
    for file_number, file in enumerate(corpus.files):
        for group, rows in enumerate(file.group_rows):
            pieces = min(rows, max(1, round(rows / target_rows)))
            edges = [rows * piece // pieces for piece in range(pieces + 1)] if rows else []
            table += [(file_number, group, start, stop - start) for start, stop in pairwise(edges)]
    return np.array(table, dtype=np.int64).reshape(-1, 4)
