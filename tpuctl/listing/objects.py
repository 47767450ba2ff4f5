"""The files of a dataset in a bucket, where folders are only a way to read names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from tpuctl.storage import open_storage


def is_object(uri: str) -> bool:
    """Whether the URI is that of one object. A trailing slash means a folder, also where a marker has that name."""
    return not uri.endswith("/") and open_storage(uri).exists(uri)


def names_below(folder: str) -> list[str]:
    """The names of all objects below a folder, relative to it; empty where there is none.

    Raises:
        StorageError: no such bucket, or a missing right.
    """
    base = folder.rstrip("/") + "/"
    return [uri.removeprefix(base) for uri in open_storage(base).list(folder.rstrip("/"))]


def names_that_fit(root: str, pattern: str, *, is_data: Callable[[str], bool]) -> Iterator[str]:
    """The names below ``root`` that fit a glob, and the data below folders that do. ``**`` crosses folders."""
    wanted = pattern.split("/")
    for name in names_below(root):
        parts = name.split("/")
        in_folder = is_data(name) and any(_fits(parts[:depth], wanted) for depth in range(len(parts)))
        if in_folder or _fits(parts, wanted):
            yield name


def split_pattern(uri: str, *, special: frozenset[str]) -> tuple[str, str]:
    """The folders of a glob before its first part with a special character, and the rest."""
    parts = uri.split("/")
    fixed = next(number for number, part in enumerate(parts) if special & set(part))
    return "/".join(parts[:fixed]), "/".join(parts[fixed:])


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return _fits(parts, wanted[1:]) or (bool(parts) and _fits(parts[1:], wanted))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])
