"""Bytes at a URI: local paths now, gs:// behind the same small interface later. Knows nothing of what the bytes mean.

Every object has a generation: a text that changes when the object does. A write or delete may be made conditional on
it, which is what a lease stands on. Local files take the digest of their content for it, so whoever guards something
must write a token of its own into it; ``gs://`` has real generations.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tpuctl.errors import StorageError

ABSENT = "absent"
"""The generation of an object that does not exist: ``write(…, if_generation=ABSENT)`` creates or fails."""

_LOCK_NAME = ".lock"
_PART_SUFFIX = ".part"


class NotFoundError(StorageError):
    """There is no such object."""


class ChangedError(StorageError):
    """The object is not at the generation the caller knew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """An object's bytes and the generation they are of."""

    data: bytes
    generation: str


class Storage(Protocol):
    """One kind of storage. A reader never sees half of a write. Every method may raise ``StorageError``."""

    def read(self, uri: str) -> Blob:
        """The object; raises ``NotFoundError``."""

    def write(self, uri: str, data: bytes, *, if_generation: str | None = None) -> str:
        """Put the object there, whole, and return its generation; raises ``ChangedError`` if it isn't at the given."""

    def append(self, uri: str, data: bytes) -> None:
        """Add to the object's end. One writer at a time; a crash may leave part of the last addition."""

    def delete(self, uri: str, *, if_generation: str | None = None) -> None:
        """Remove the object, if it is there; raises ``ChangedError`` as ``write`` does."""

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""

    def list(self, prefix: str) -> Iterator[str]:
        """The URIs of all objects below a directory, sorted."""


def open_storage(uri: str) -> Storage:
    """The storage that holds ``uri``.

    Raises:
        StorageError: a scheme this version can't serve.
    """
    scheme, mark, _ = uri.partition("://")
    if not mark or scheme == "file":
        return LocalStorage()
    if scheme == "gs":
        raise StorageError(f"{uri}: gs:// is not supported in this version", hint="use a path that all hosts share")
    raise StorageError(f"{uri}: no storage for {scheme}://", hint="use an absolute path")


def join(base: str, *parts: str) -> str:
    """The URI of something below ``base``."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts)])


class LocalStorage:
    """Files. Conditional writes hold a lock file beside the object, so that they exclude each other over NFS too."""

    def read(self, uri: str) -> Blob:
        """The file's bytes."""
        with _explained(uri):
            data = _path(uri).read_bytes()
        return Blob(data=data, generation=_generation(data))

    def write(self, uri: str, data: bytes, *, if_generation: str | None = None) -> str:
        """Write a new file and rename it into place."""
        path = _path(uri)
        with _explained(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            if if_generation is None:
                _replace(path, data)
            else:
                with _locked(path.parent):
                    self._require(uri, if_generation)
                    _replace(path, data)
        return _generation(data)

    def append(self, uri: str, data: bytes) -> None:
        """Add to the file in one system call."""
        path = _path(uri)
        with _explained(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(data)

    def delete(self, uri: str, *, if_generation: str | None = None) -> None:
        """Remove the file."""
        path = _path(uri)
        if not path.parent.is_dir():
            return
        with _explained(uri), _locked(path.parent):
            if if_generation is not None:
                self._require(uri, if_generation)
            path.unlink(missing_ok=True)

    def exists(self, uri: str) -> bool:
        """Whether the file is there."""
        return _path(uri).is_file()

    def list(self, prefix: str) -> Iterator[str]:
        """All files below the directory but our own locks and unfinished writes."""
        root = _path(prefix)
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name != _LOCK_NAME and path.suffix != _PART_SUFFIX:
                yield join(prefix, path.relative_to(root).as_posix())

    def _require(self, uri: str, generation: str) -> None:
        try:
            now = self.read(uri).generation
        except NotFoundError:
            now = ABSENT
        if now != generation:
            raise ChangedError(f"{uri}: changed meanwhile")


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://")).expanduser()


def _generation(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PART_SUFFIX}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            # Without it a power cut may leave the new name with nothing behind it.
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # Opened for writing, since NFS turns flock into a range lock that asks for it.
    with (directory / _LOCK_NAME).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{uri}: not found") from error
    except OSError as error:
        raise StorageError(f"{uri}: {error.strerror or error}") from error
