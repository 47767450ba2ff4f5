"""Decoded row groups, any row of them at once, in bounded memory.

Parquet can only be decoded from a group's start, so a lane that jumps about in a group needs it decoded whole. Small
groups are held in memory. A large one is streamed into a scratch file on local disk and memory-mapped: the page
cache bounds the memory, and as the file is unlinked while it is open, no crash can leave it behind.
"""

from __future__ import annotations

import bisect
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Self

import pyarrow as pa

from tpuctl.errors import DataError
from tpuctl.train.data.columns import not_utf8
from tpuctl.train.data.corpus import Corpus
from tpuctl.train.data.parquet import read_group

_SCHEMA = pa.schema([("text", pa.large_string())])


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBudget:
    """How much a reader may hold decoded: in memory, and on disk beyond the groups its lanes stand in."""

    memory_bytes: int = 256 << 20
    disk_bytes: int = 4 << 30


@dataclass(kw_only=True, slots=True)
class DecodedGroup:
    """The rows of one row group as text. ``memory_bytes`` or ``disk_bytes`` is what it costs."""

    arrays: list[pa.Array]
    memory_bytes: int = 0
    disk_bytes: int = 0
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = list(accumulate((len(array) for array in self.arrays), initial=0))

    def slice(self, row: int) -> pa.Array:
        """An array of the one row, without copying."""
        block = bisect.bisect_right(self._starts, row) - 1
        return self.arrays[block].slice(row - self._starts[block], 1)

    @classmethod
    def decode(cls, arrays: Iterator[pa.Array], *, memory_bytes: int) -> Self:
        """Hold the arrays in memory if they fit into ``memory_bytes``, else on disk."""
        held: list[pa.Array] = []
        size = 0
        for array in arrays:
            held.append(array)
            size += array.nbytes
            if size > memory_bytes:
                return cls._spool(chain(held, arrays))
        return cls(arrays=held, memory_bytes=size)

    @classmethod
    def _spool(cls, arrays: Iterator[pa.Array]) -> Self:
        handle, name = tempfile.mkstemp(prefix="tpuctl-rowgroup-", suffix=".arrow")
        os.close(handle)
        try:
            with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                for array in arrays:
                    writer.write_batch(pa.record_batch([array], schema=_SCHEMA))
            disk_bytes = os.path.getsize(name)
            reader = pa.ipc.open_file(pa.memory_map(name))
        except OSError as error:
            raise DataError(
                f"{Path(name).parent}: no room to decode a large row group: {error}",
                hint="free local disk, point TMPDIR to a larger one, or write the dataset with smaller row groups",
            ) from error
        finally:
            os.unlink(name)
        batches = [reader.get_batch(i).column(0) for i in range(reader.num_record_batches)]
        return cls(arrays=batches, disk_bytes=disk_bytes)


class GroupCache:
    """The decoded groups of a reader: the one each of its lanes stands in, and lately used ones within the budget."""

    def __init__(self, corpus: Corpus, *, lanes: int, budget: GroupBudget | None = None) -> None:
        self._corpus = corpus
        self._budget = budget or GroupBudget()
        self._group_bytes = self._budget.memory_bytes // max(1, lanes)
        self._groups: OrderedDict[tuple[int, int], DecodedGroup] = OrderedDict()
        self._held: dict[int, tuple[int, int]] = {}
        self.decoded_groups = 0

    def text(self, lane: int, *, file: int, group: int, row: int) -> str | None:
        """The text of one row; the lane then stands in that row's group and lets go of the one before.

        Raises:
            DataError: the group can't be read, or the row is no text.
        """
        self._held[lane] = (file, group)
        piece = self._decoded(file, group).slice(row)
        try:
            text: str | None = piece[0].as_py()
        except UnicodeDecodeError as error:
            raise not_utf8(error, path=self._corpus.files[file].path, columns=self._corpus.columns) from error
        return text

    def place(self, *, file: int, group: int, row: int) -> str:
        """Where a row lies, for messages."""
        return f"{self._corpus.files[file].path}: row group {group}, row {row}"

    def _decoded(self, file: int, group: int) -> DecodedGroup:
        key = (file, group)
        if key not in self._groups:
            arrays = read_group(self._corpus.files[file].path, group, columns=self._corpus.columns)
            self._groups[key] = DecodedGroup.decode(arrays, memory_bytes=self._group_bytes)
            self.decoded_groups += 1
            self._evict()
        self._groups.move_to_end(key)
        return self._groups[key]

    def _evict(self) -> None:
        memory = sum(group.memory_bytes for group in self._groups.values())
        disk = sum(group.disk_bytes for group in self._groups.values())
        held = set(self._held.values())
        for key in [key for key in self._groups if key not in held]:
            group = self._groups[key]
            over_memory = group.memory_bytes and memory > self._budget.memory_bytes
            over_disk = group.disk_bytes and disk > self._budget.disk_bytes
            if over_memory or over_disk:
                del self._groups[key]
                memory -= group.memory_bytes
                disk -= group.disk_bytes
