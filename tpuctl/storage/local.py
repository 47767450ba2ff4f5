"""Local files as a storage.

A small file's generation is the digest of its content, which holds on every file system, those that make up their
inode numbers included. Only small files are guarded; nobody should read a whole shard to know its size, so a large one
answers with its size and time of change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tpuctl.errors import StorageError
from tpuctl.storage.errors import ChangedError, NotFoundError
from tpuctl.storage.protocol import ABSENT, Blob, Stat
from tpuctl.storage.uri import join

_LOCK_NAME = ".lock"
_PART_SUFFIX = ".part"
_DIGESTED_BYTES = 1 << 20


class LocalStorage:
    """Files. Conditional writes hold a lock file beside the object, so that they exclude each other over NFS too."""

    def read(self, uri: str) -> Blob:
        """The file's bytes."""
        with _explained(uri), _path(uri).open("rb") as file:
            data = file.read()
            return Blob(data=data, generation=_generation(file))

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """Part of the file."""
        with _explained(uri), _path(uri).open("rb") as file:
            file.seek(start)
            return file.read(max(0, end - start))

    def stat(self, uri: str) -> Stat:
        """What the file system says; a small file is read for its generation."""
        with _explained(uri), _path(uri).open("rb") as file:
            return Stat(size=os.fstat(file.fileno()).st_size, generation=_generation(file))

    def write(self, uri: str, data: bytes, *, if_generation: str | None = None) -> str:
        """Write a new file and rename it into place."""
        path = _path(uri)
        with _explained(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            if if_generation is None:
                return _replace(path, data)
            with _locked(path.parent):
                self._require(uri, if_generation)
                return _replace(path, data)

    def append(self, uri: str, data: bytes) -> None:
        """Add to the file in one system call."""
        path = _path(uri)
        with _explained(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(data)

    def put_file(self, path: Path, uri: str) -> None:
        """Copy a file and rename the copy into place."""
        to = _path(uri)
        with _explained(uri):
            to.parent.mkdir(parents=True, exist_ok=True)
            with _part_of(to) as part:
                shutil.copyfile(path, part)

    def get_file(self, uri: str, path: Path) -> None:
        """Copy the file out."""
        with _explained(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _part_of(path) as part:
                shutil.copyfile(_path(uri), part)

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
            now = self.stat(uri).generation
        except NotFoundError:
            now = ABSENT
        if now != generation:
            raise ChangedError(f"{uri}: changed meanwhile")


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://")).expanduser()


def _generation(file: BinaryIO) -> str:
    found = os.fstat(file.fileno())
    if found.st_size > _DIGESTED_BYTES:
        return f"{found.st_size}-{found.st_mtime_ns}"
    file.seek(0)
    return hashlib.sha256(file.read()).hexdigest()[:32]


def _replace(path: Path, data: bytes) -> str:
    with _part_of(path) as part:
        with part.open("wb") as file:
            file.write(data)
        with part.open("rb") as file:
            return _generation(file)


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place at the end of the block, if that is reached."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PART_SUFFIX}")
    try:
        yield part
        with part.open("rb") as file:
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
