"""What every storage can do, and the two small things it answers with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ABSENT = "absent"
"""The generation of an object that does not exist: ``write(…, if_generation=ABSENT)`` creates or fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """An object's bytes and the generation they are of."""

    data: bytes
    generation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """An object as its storage describes it; ``size`` is in bytes, ``crc32c`` None where it keeps no checksum."""

    size: int
    generation: str
    crc32c: int | None = None


class Storage(Protocol):
    """One kind of storage. A reader never sees half of a write. Every method may raise ``StorageError``."""

    def read(self, uri: str) -> Blob:
        """The object; raises ``NotFoundError``."""

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``, fewer where the object ends before; raises ``NotFoundError``."""

    def stat(self, uri: str) -> Stat:
        """Size and generation, without the bytes; raises ``NotFoundError``."""

    def write(self, uri: str, data: bytes, *, if_generation: str | None = None) -> str:
        """Put the object there, whole, and return its generation; raises ``ChangedError`` if it isn't at the given.

        Whoever gives a generation writes something that nobody else would: an object that has these very bytes
        although it is not at that generation is taken for our own, sent twice because an answer was lost.
        """

    def put_file(self, path: Path, uri: str) -> None:
        """Write the content of a local file of any size, whole or not at all."""

    def get_file(self, uri: str, path: Path) -> None:
        """Fetch an object of any size into a local file, whole or not at all; raises ``NotFoundError``."""

    def delete(self, uri: str, *, if_generation: str | None = None) -> None:
        """Remove the object, if it is there; raises ``ChangedError`` as ``write`` does."""

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""

    def list(self, prefix: str) -> Iterator[str]:
        """The URIs of all objects below a directory, sorted."""
