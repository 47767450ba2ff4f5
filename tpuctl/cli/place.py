"""What a word on the command line names: a file of this machine, or a place that storage knows.

Words arrive as text. A ``Path`` would fold the ``//`` of a URI and take an empty word for the current directory.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import typer

from tpuctl.errors import UsageError


def given(text: str) -> str:
    """A word that says something: a shell variable that was never set arrives as an empty one.

    Raises:
        BadParameter: it is empty.
    """
    if not text.strip():
        raise typer.BadParameter("it is empty")
    return text


def local_file(text: str) -> Path:
    """A path on this machine.

    Raises:
        BadParameter: it is empty, or a URI.
    """
    if "://" in given(text):
        raise typer.BadParameter(f"{text} is a URI; a file of this machine is wanted")
    return Path(text)


def place(text: str) -> str:
    """A local path made absolute, or a ``gs://`` URI as it stands.

    Raises:
        UsageError: a URI of another scheme, or one that names no bucket.
    """
    scheme, mark, rest = text.partition("://")
    if mark and scheme == "gs":
        if not rest.partition("/")[0].strip():
            raise UsageError(f"{text} names no bucket", hint="write gs://BUCKET/PATH")
        return text.rstrip("/")
    if mark and scheme != "file":
        raise UsageError(f"{text}: no storage for {scheme}://", hint="name a local path or gs://BUCKET/PATH")
    if not mark and text.startswith("gs:"):
        raise UsageError(f"{text} is no URI", hint="write gs://BUCKET/PATH; ./gs: is a local path of that name")
    from tpuctl.cli.plan import current_directory

    path = Path(os.path.expanduser(rest if mark else text))
    return str(path if path.is_absolute() else current_directory() / path)


def require_folder(folder: Path) -> None:
    """Make sure that files can be written into a folder that may not be there yet; nothing of the trial stays.

    Raises:
        UsageError: it is a file, can't be made, or can't be written to.
    """
    made: list[Path] = []
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file", hint="name a folder, new or not")
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder} can't be written to: {error.strerror}", hint="name another folder") from error
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()
