"""Whether what was read of files in a bucket, in parts and by several hosts, are the bytes that were put there.

Nothing vouches for a part of an object but the connection. Parts that make up a whole file have a checksum together,
and so has the bucket.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import multihost_utils

from tpuctl.errors import WeightsError
from tpuctl.safetensors import TensorFile
from tpuctl.storage.checksum import crc32c, crc32c_joined

_RECORD = struct.Struct("<IQQI")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A run of bytes that was read, and its checksum."""

    start: int
    size: int
    crc32c: int


class Checksums:
    """The parts this host has read, by file. Safe to add to from many threads."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}
        self._lock = threading.Lock()

    def add(self, uri: str, start: int, data: bytes) -> None:
        """Some bytes of a file."""
        part = Part(start=start, size=len(data), crc32c=crc32c(data))
        with self._lock:
            self._parts.setdefault(uri, []).append(part)

    def verify(self, files: Iterable[TensorFile]) -> None:
        """Hold what all hosts have read against the files' checksums; every host calls it, with the same files.

        A file of which some bytes were read by nobody, or one without a checksum, is passed over.

        Raises:
            WeightsError: bytes of a file arrived damaged; names it.
        """
        known = [file for file in files if file.crc32c is not None]
        if not known:
            return
        numbers = {file.uri: number for number, file in enumerate(known)}
        own = [(numbers[uri], part) for uri, parts in self._parts.items() if uri in numbers for part in parts]
        found = _of_all_hosts(own)
        for number, file in enumerate(known):
            beginning = Part(start=0, size=len(file.beginning), crc32c=crc32c(file.beginning))
            parts = {beginning, *found.get(number, set())}
            if _contradict(parts) or _joined(parts, size=file.size) not in (None, file.crc32c):
                raise WeightsError(
                    f"{file.uri}: its bytes arrived damaged: the checksum is not the one on record",
                    hint="start again; if it stays so, copy the file again",
                )


def _contradict(parts: set[Part]) -> bool:
    """Whether two hosts have read the same bytes and found others."""
    return len({(part.start, part.size) for part in parts}) < len(parts)


def _joined(parts: set[Part], *, size: int) -> int | None:
    """The checksum of the file that the parts make up, None where they leave a gap or overlap."""
    whole, end = 0, 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.start == end:
            whole, end = crc32c_joined(whole, part.crc32c, right_bytes=part.size), end + part.size
    return whole if end == size else None


def _of_all_hosts(own: list[tuple[int, Part]]) -> dict[int, set[Part]]:
    packed = b"".join(_RECORD.pack(number, part.start, part.size, part.crc32c) for number, part in own)
    found: dict[int, set[Part]] = {}
    for number, start, size, checksum in _RECORD.iter_unpack(_gathered(packed)):
        found.setdefault(number, set()).add(Part(start=start, size=size, crc32c=checksum))
    return found


def _gathered(own: bytes) -> bytes:
    """What all hosts give, one after the other."""
    if jax.process_count() == 1:
        return own
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(own)))).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), -1)
    return b"".join(row[:length].tobytes() for row, length in zip(rows, lengths, strict=True))
