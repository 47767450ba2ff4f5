"""Which files of a directory travel with a job: all but version control, caches and what .gitignore names.

A file the job is known to need travels even if it is ignored: finding out on the cluster that it is missing takes
minutes, and the ignore file was written for another purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

Files = dict[str, Path]

_NEVER = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints",
}  # fmt: skip
_IGNORE_FILE = ".gitignore"


def collect(
    directory: Path, *, needed: Iterable[str] = (), exclude: Iterable[str] = (), honour_ignore_files: bool = True
) -> Files:
    """The files below ``directory`` that travel, by their relative names with slashes.

    Args:
        directory: where to look.
        needed: relative names of files the job refers to; they travel whatever an ignore file says.
        exclude: further patterns of what stays behind, in the language of ``.gitignore``.
        honour_ignore_files: leave out what the directory's ``.gitignore`` files name.

    Raises:
        UsageError: a needed file is missing or lies outside, or there is no such directory.
    """
    if not directory.is_dir():
        raise UsageError(f"working directory {directory}: no such directory")
    ignored = _Ignored(exclude=exclude) if honour_ignore_files else None
    files = dict(_walk(directory, PurePosixPath(), ignored, frozenset()))
    for name in needed:
        path = directory / name
        if not path.is_file():
            raise UsageError(f"{name}: the job refers to it, but {directory} has no such file")
        if not path.resolve().is_relative_to(directory.resolve()):
            raise UsageError(f"{name}: lies outside the working directory {directory}, so it can't travel with the job")
        files[PurePosixPath(os.path.normpath(name)).as_posix()] = path
    return files


def largest_paths(sizes: Mapping[str, int], *, count: int) -> list[tuple[str, int]]:
    """The files or directories to blame for a total: a directory is opened if one thing in it makes up half of it."""
    children: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        path = PurePosixPath(name)
        for inner, outer in zip((path, *path.parents), path.parents, strict=False):
            level = children.setdefault(str(outer), {})
            level[str(inner)] = level.get(str(inner), 0) + size
    found: list[tuple[str, int]] = []
    waiting = dict(children.get(".", {}))
    while waiting and len(found) < count:
        path_name = max(waiting, key=lambda name: waiting[name])
        size = waiting.pop(path_name)
        inside = children.get(path_name, {})
        if inside and 2 * max(inside.values()) >= size:
            waiting.update(inside)
        else:
            found.append((f"{path_name}/" if inside else path_name, size))
    return found


class _Ignored:
    """The rules of the .gitignore files from the root down to one directory; the last that matches decides.

    What ``exclude`` names is ignored whatever they say.
    """

    def __init__(self, *, exclude: Iterable[str] = ()) -> None:
        patterns = tuple(exclude)
        self._rules: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...] = ()
        self._excluded = _spec(patterns) if patterns else None

    def below(self, directory: Path, relative: PurePosixPath) -> _Ignored:
        """The rules for what lies in ``directory``."""
        file = directory / _IGNORE_FILE
        if not file.is_file():
            return self
        inner = copy(self)
        inner._rules = (
            *self._rules,
            (relative, _spec(file.read_text(encoding="utf-8", errors="replace").splitlines())),
        )
        return inner

    def __contains__(self, path: str) -> bool:
        """Whether a relative path is ignored; that of a directory ends in a slash."""
        if self._excluded is not None and self._excluded.match_file(path):
            return True
        ignored = False
        for base, spec in self._rules:
            inner = path if base == PurePosixPath() else path.removeprefix(f"{base}/")
            verdict = spec.check_file(inner).include
            ignored = ignored if verdict is None else verdict
        return ignored


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    # Only a user's own directory needs it.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _walk(
    directory: Path, relative: PurePosixPath, ignored: _Ignored | None, above: frozenset[str]
) -> Iterator[tuple[str, Path]]:
    real = os.path.realpath(directory)
    if real in above:  # a link back to where we came from
        return
    if ignored is not None:
        ignored = ignored.below(directory, relative)
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = (relative / entry.name).as_posix()
            if entry.name in _NEVER:
                continue
            if entry.is_dir():
                if ignored is None or f"{name}/" not in ignored:
                    yield from _walk(Path(entry.path), relative / entry.name, ignored, above | {real})
            elif entry.is_file() and not entry.name.endswith(".pyc") and (ignored is None or name not in ignored):
                yield name, Path(entry.path)
