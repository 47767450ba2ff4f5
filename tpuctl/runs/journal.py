"""A log of lines that only grows, in a file or in a bucket, by one writer.

Objects in a bucket can't be appended to, and may be written about once a second. So there a journal is a folder of
parts, ``metrics.jsonl/00000`` and so on: the last one is written anew whenever lines are waiting, every few seconds
and from a thread of its own, and when it is full the next one is begun. A reader sees whole lines only. A writer that
another one has taken over from finds its part changed and writes no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tpuctl.errors import StorageError
from tpuctl.storage import ABSENT, LocalStorage, NotFoundError, Storage, is_gcs, join, open_storage

FLUSH_SECONDS = 2.0
PART_BYTES = 256 << 10

Wanted = Callable[[bytes], bool]


class Journal(Protocol):
    """A journal open for writing."""

    def append(self, data: bytes) -> None:
        """Add whole lines."""

    def keep_only(self, wanted: Wanted) -> None:
        """Drop the lines that ``wanted`` is false of."""

    def close(self) -> None:
        """Return once all lines are kept; raises ``StorageError`` if they can't be."""


def open_journal(directory: str, name: str) -> Journal:
    """The journal ``name`` of a directory, to be written by this process alone."""
    uri = join(directory, name)
    return PartsJournal(uri) if is_gcs(uri) else FileJournal(uri)


def read_journal(directory: str, name: str) -> bytes:
    """All lines of a journal; empty if there is none. A file may end in the part of a line."""
    uri = join(directory, name)
    storage = open_storage(uri)
    parts = storage.list(uri) if is_gcs(uri) else [uri]
    return b"".join(_read_if_there(storage, part) for part in parts)


class FileJournal:
    """A journal in one file; every line is there at once."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._storage = LocalStorage()

    def append(self, data: bytes) -> None:
        """Add to the file."""
        self._storage.append(self._uri, data)

    def keep_only(self, wanted: Wanted) -> None:
        """Write the file anew, if a line goes."""
        data = _read_if_there(self._storage, self._uri)
        kept = _kept(data, wanted)
        if kept != data:
            self._storage.write(self._uri, kept)

    def close(self) -> None:
        """Nothing is pending."""


class PartsJournal:
    """A journal in numbered objects. ``append`` returns at once; lines that can't be written wait for the next time."""

    def __init__(self, uri: str, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._uri = uri
        self._storage = open_storage(uri)
        self._flush_seconds = flush_seconds
        self._writing = threading.Lock()  # held while a request is under way
        self._adding = threading.Lock()  # never is
        self._waiting = b""
        self._number, self._content, self._generation = 0, b"", ABSENT
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._take_over()

    def append(self, data: bytes) -> None:
        """Add lines; they are in the bucket some seconds later."""
        with self._adding:
            self._waiting += data
        if self._thread is None:
            self._thread = threading.Thread(target=self._flush_always, name="journal", daemon=True)
            self._thread.start()

    def keep_only(self, wanted: Wanted) -> None:
        """Write those parts anew that lose a line; each by itself, so that a crash leaves nothing twice."""
        self.flush()
        with self._writing:
            for part in list(self._storage.list(self._uri)):
                data = self._storage.read(part).data
                kept = _kept(data, wanted)
                if kept != data:
                    self._storage.write(part, kept)
            self._take_over()

    def flush(self) -> None:
        """Write what is waiting.

        Raises:
            ChangedError: another writer has taken over.
            StorageError: not now; the lines wait on.
        """
        with self._writing:
            with self._adding:
                data = self._waiting
            if not data:
                return
            if len(self._content) >= PART_BYTES:
                self._number, self._content, self._generation = self._number + 1, b"", ABSENT
            content = self._content + data
            self._generation = self._storage.write(self._part(), content, if_generation=self._generation)
            self._content = content
            with self._adding:
                self._waiting = self._waiting[len(data) :]

    def close(self) -> None:
        """Write what is waiting and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _take_over(self) -> None:
        """Go on in the last part, and write it at once, so that a former writer can't any more."""
        parts = list(self._storage.list(self._uri))
        if parts:
            self._number = int(parts[-1].rpartition("/")[2])
            self._content = self._storage.read(parts[-1]).data
            self._generation = self._storage.write(parts[-1], self._content)

    def _flush_always(self) -> None:
        while not self._closing.wait(self._flush_seconds):
            try:
                self.flush()
            except StorageError:
                # Told by `close`, if it is still so then: a run goes on while its history waits.
                continue

    def _part(self) -> str:
        return join(self._uri, f"{self._number:08}")


def _read_if_there(storage: Storage, uri: str) -> bytes:
    try:
        return storage.read(uri).data
    except NotFoundError:
        return b""


def _kept(data: bytes, wanted: Wanted) -> bytes:
    return b"".join(line + b"\n" for line in data.split(b"\n") if line and wanted(line))
