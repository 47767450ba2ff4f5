"""``builtin:python-stdlib``: real text that every machine has, as a parquet dataset.

The sources of the standard library of the Python that runs this, and the prose of its ``help()`` topics. As a
command: ``python -m tpuctl.entrypoints.corpus FOLDER``. Imports no ray and no jax.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.errors import DataError
from tpuctl.storage import is_gcs, join, open_storage

PYTHON_STDLIB = "builtin:python-stdlib"
# What a plan calls the held-out part of it.
PYTHON_STDLIB_HELD_OUT = f"{PYTHON_STDLIB}/held-out"

# Raise this when the same interpreter would give other rows.
_FORMAT = 2

# Tests repeat what they test; the code tables in ``encodings`` are near copies of one another, so that some would be
# learned from the training text and found again in the held-out one.
_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__", "pydoc_data"}
)
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")

_TRAIN = "train.parquet"
_HELD_OUT = "held-out.parquet"
_HELD_OUT_PER_MILLE = 30
_LEAST_BYTES = 1 << 20
_ROWS_PER_GROUP = 64
# A training file is cut into sections of about this many characters. A lane packs its documents one after the other,
# so with whole files a small batch would hold the same few files for many steps on end.
_SECTION_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusUris:
    """A training dataset and its held-out part."""

    train_uri: str
    eval_uri: str | None


def dataset_uris(uri: str, *, eval_uri: str | None, directory: str) -> CorpusUris:
    """The datasets a plan names; a built-in one is built below ``directory`` first, a path or a ``gs://`` URI.

    An ``eval_uri`` of the user's own stands, also beside a built-in dataset.

    Raises:
        DataError: no such built-in dataset.
    """
    if not uri.startswith("builtin:"):
        return CorpusUris(train_uri=uri, eval_uri=eval_uri)
    if uri != PYTHON_STDLIB:
        raise DataError(f"no built-in dataset {uri!r}", hint=f"there is {PYTHON_STDLIB}")
    built = build(directory)
    return (
        built
        if eval_uri in (None, PYTHON_STDLIB_HELD_OUT)
        else CorpusUris(train_uri=built.train_uri, eval_uri=eval_uri)
    )


def build(directory: str | Path) -> CorpusUris:
    """Write the dataset into a folder of its own below ``directory``, whole or not at all; one that is there is used.

    The folder is named for the interpreter, so that another Python makes another dataset.

    Raises:
        DataError: this interpreter comes without its sources.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    name = f"python-stdlib-{version}-{_FORMAT}"
    if is_gcs(str(directory)):
        return _build_in_bucket(join(str(directory), name))
    folder = Path(directory).absolute() / name
    if not folder.is_dir():
        _write(folder)
    return CorpusUris(train_uri=str(folder / _TRAIN), eval_uri=str(folder / _HELD_OUT))


def main() -> None:
    """Build the dataset and print the two paths to put into a recipe."""
    parser = argparse.ArgumentParser(description="Write the Python standard library's text as a parquet dataset.")
    parser.add_argument("folder", type=Path, help="where to put it")
    uris = build(parser.parse_args().folder)
    print(f'[data]\nuri = "{uris.train_uri}"\neval_uri = "{uris.eval_uri}"')


def _build_in_bucket(folder: str) -> CorpusUris:
    uris = CorpusUris(train_uri=join(folder, _TRAIN), eval_uri=join(folder, _HELD_OUT))
    storage = open_storage(folder)
    if not storage.exists(uris.train_uri):
        with tempfile.TemporaryDirectory(prefix="tpuctl-corpus-") as scratch:
            local = Path(scratch) / "built"
            _write(local)
            # The one that is looked for goes last. Two who do this at once write the same bytes.
            storage.put_file(local / _HELD_OUT, join(folder, _HELD_OUT))
            storage.put_file(local / _TRAIN, uris.train_uri)
    return uris


def _write(folder: Path) -> None:
    documents = dict(_documents(Path(sysconfig.get_path("stdlib"))))
    held_out = {path: text for path, text in documents.items() if _is_held_out(path)}
    training = {path: text for path, text in documents.items() if path not in held_out}
    if sum(map(len, training.values())) < _LEAST_BYTES or not held_out:
        raise DataError(
            f"the Python at {sys.executable} comes without the sources of its standard library",
            hint="name a dataset of your own in data.uri",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    partial.chmod(0o755)
    sections = [(path, section) for path, text in training.items() for section in _sections(text)]
    _write_parquet(partial / _TRAIN, sorted(sections, key=lambda item: _digest(item[1])))
    _write_parquet(partial / _HELD_OUT, list(held_out.items()))
    _publish(partial, folder)


def _publish(partial: Path, folder: Path) -> None:
    try:
        os.rename(partial, folder)
    except OSError:
        if not folder.is_dir():
            raise
        # Another process was faster, with the same content.
        shutil.rmtree(partial)


def _documents(stdlib: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each document, sorted by path, each text once."""
    seen = set()
    for path, text in sorted([*_sources(stdlib), *_topics()]):
        digest = _digest(text.strip())
        if text.strip() and digest not in seen:
            seen.add(digest)
            yield path, text


def _sources(stdlib: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(stdlib):
        folders[:] = [name for name in folders if _is_taken(name)]
        for path in (Path(folder, name) for name in names if name.endswith(".py") and _is_taken(name)):
            with tokenize.open(path) as file:
                yield path.relative_to(stdlib).as_posix(), file.read()


def _is_taken(name: str) -> bool:
    return name not in _SKIPPED_FOLDERS and not name.startswith(_SKIPPED_PREFIXES)


def _topics() -> Iterable[tuple[str, str]]:
    # Some distributions pack these apart from the rest of the library.
    if importlib.util.find_spec("pydoc_data") is None:
        return []
    topics = importlib.import_module("pydoc_data.topics").topics
    return [(f"pydoc_data/topics/{name}.txt", text) for name, text in topics.items()]


def _is_held_out(path: str) -> bool:
    return int.from_bytes(_digest(path)[:8], "big") % 1000 < _HELD_OUT_PER_MILLE


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _sections(text: str) -> Iterator[str]:
    """The text cut after blank lines, each section as short as may be above the least size."""
    section: list[str] = []
    size, after_blank = 0, False
    for line in text.splitlines(keepends=True):
        if size >= _SECTION_CHARACTERS and after_blank:
            yield "".join(section)
            section, size = [], 0
        section.append(line)
        size += len(line)
        after_blank = not line.strip()
    yield "".join(section)


def _write_parquet(path: Path, documents: list[tuple[str, str]]) -> None:
    table = pa.table({"path": [path for path, _ in documents], "text": [text for _, text in documents]})
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="zstd", write_page_checksum=True)


if __name__ == "__main__":
    main()
