"""Which files a dataset URI means, in a folder or in a bucket, by the same rules and under the same names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import DataError, StorageError
from tpuctl.listing import objects
from tpuctl.storage import is_gcs

_SUFFIXES = (".parquet", ".parq", ".pq")
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ListedFile:
    """A file of a dataset. ``name`` is its path below the dataset's root: the same wherever the dataset lies."""

    name: str
    path: str


def list_files(uri: str) -> tuple[ListedFile, ...]:
    """The files of a dataset, sorted by name.

    ``uri`` is a file, a folder (every parquet file below it) or a glob of either (``**`` crosses folders). A path that
    exists is taken as it stands, whatever characters it has. Names that begin with ``.`` or ``_`` are skipped, as
    writers use them for what isn't data; so is what lies in a folder of such a name.

    Raises:
        DataError: nothing there.
        StorageError: a place we can't read from.
    """
    if is_gcs(uri):
        return _list_bucket(uri)
    path = _local_path(uri)
    if path.is_file():
        return (ListedFile(name=path.name, path=str(path)),)
    if path.is_dir():
        return _required(_walk(path), uri=uri, where=f"no parquet file in the folder {path}")
    if _GLOB_CHARACTERS & set(uri):
        return _required(_glob(path), uri=uri, where=f"no file fits the pattern {path}")
    raise DataError(f"{path}: no such file or folder", hint="data.uri is a parquet file, a folder of them, or a glob")


def _local_path(uri: str) -> Path:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Path(uri).absolute()
    if scheme == "file":
        return Path(rest).absolute()
    raise StorageError(
        f"{uri}: datasets in {scheme}:// can't be read",
        hint="copy the files to gs:// or to a folder that every host sees, and name that",
    )


def _list_bucket(uri: str) -> tuple[ListedFile, ...]:
    if objects.is_object(uri):
        return (ListedFile(name=uri.rpartition("/")[2], path=uri),)
    root = uri.rstrip("/")
    names = [name for name in objects.names_below(root) if _is_data_file(name)]
    if not names and _GLOB_CHARACTERS & set(uri):
        root, pattern = objects.split_pattern(uri, special=_GLOB_CHARACTERS)
        fitting = objects.names_that_fit(root, pattern, is_data=_is_data_file)
        names = [name for name in fitting if all(map(_is_data, name.split("/")))]
    listed = [ListedFile(name=name, path=f"{root}/{name}") for name in names]
    return _required(listed, uri=uri, where="no such object, and no parquet file below it")


def _walk(root: Path) -> list[ListedFile]:
    return [ListedFile(name=path.relative_to(root).as_posix(), path=str(path)) for path in _files_below(root)]


def _glob(pattern: Path) -> list[ListedFile]:
    """The files that fit, and the parquet files below the folders that do."""
    root = _fixed_part(pattern)
    found: set[Path] = set()
    for path in map(Path, glob.iglob(str(pattern), recursive=True)):
        if all(_is_data(part) for part in path.relative_to(root).parts):
            found.update([path] if path.is_file() else _files_below(path))
    return [ListedFile(name=path.relative_to(root).as_posix(), path=str(path)) for path in found]


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if _is_data(name)]
        yield from (Path(folder, name) for name in names if _is_data(name) and name.lower().endswith(_SUFFIXES))


def _refuse(error: OSError) -> None:
    """``os.walk`` leaves out what it can't list; a dataset that is silently smaller would be another dataset."""
    raise StorageError(f"{error.filename} can't be listed: {error.strerror}") from error


def _fixed_part(pattern: Path) -> Path:
    """The folders of a glob before its first part with a pattern in it."""
    fixed = []
    for part in pattern.parts[:-1]:
        if _GLOB_CHARACTERS & set(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _is_data_file(name: str) -> bool:
    """Whether a relative name is that of a data file in data folders."""
    return name.lower().endswith(_SUFFIXES) and all(map(_is_data, name.split("/")))


def _is_data(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(".crc")


def _required(files: list[ListedFile], *, uri: str, where: str) -> tuple[ListedFile, ...]:
    if not files:
        raise DataError(f"data.uri {uri!r}: {where}", hint="names that begin with . or _ are not taken as data")
    return tuple(sorted(files))
