"""The built-in datasets: real text that every machine has, as parquet.

``builtin:python-stdlib`` is the sources of the standard library of the Python that runs this, and the prose of its
``help()`` topics; ``builtin:python-help`` is conversations made of what is documented there. As a command:
``python -m tpuctl.entrypoints.corpus FOLDER``. Imports no ray and no jax.
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

from tpuctl.entrypoints.corpus_help import conversations
from tpuctl.errors import DataError
from tpuctl.storage import is_gcs, join, open_storage

PYTHON_STDLIB = "builtin:python-stdlib"
PYTHON_HELP = "builtin:python-help"
# What a plan calls the held-out part of one.
HELD_OUT = "/held-out"

# Raise one when the same interpreter would give other rows.
_FORMATS = {PYTHON_STDLIB: 2, PYTHON_HELP: 1}

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
    if uri not in _FORMATS:
        raise DataError(f"no built-in dataset {uri!r}", hint=f"there is {', '.join(_FORMATS)}")
    built = build(directory, uri=uri)
    return built if eval_uri in (None, uri + HELD_OUT) else CorpusUris(train_uri=built.train_uri, eval_uri=eval_uri)


def build(directory: str | Path, *, uri: str = PYTHON_STDLIB) -> CorpusUris:
    """Write a dataset into a folder of its own below ``directory``, whole or not at all; one that is there is used.

    The folder is named for the interpreter, so that another Python makes another dataset.

    Raises:
        DataError: this interpreter comes without its sources.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    name = f"{uri.removeprefix('builtin:')}-{version}-{_FORMATS[uri]}"
    if is_gcs(str(directory)):
        return _build_in_bucket(join(str(directory), name), uri=uri)
    folder = Path(directory).absolute() / name
    if not folder.is_dir():
        _write(folder, uri=uri)
    return CorpusUris(train_uri=str(folder / _TRAIN), eval_uri=str(folder / _HELD_OUT))


def main() -> None:
    """Build a dataset and print the two paths to put into a recipe."""
    parser = argparse.ArgumentParser(description="Write the Python standard library's text as a parquet dataset.")
    parser.add_argument("folder", type=Path, help="where to put it")
    parser.add_argument("--uri", choices=sorted(_FORMATS), default=PYTHON_STDLIB, help="which of the built-in ones")
    asked = parser.parse_args()
    uris = build(asked.folder, uri=asked.uri)
    print(f'[data]\nuri = "{uris.train_uri}"\neval_uri = "{uris.eval_uri}"')


def _build_in_bucket(folder: str, *, uri: str) -> CorpusUris:
    uris = CorpusUris(train_uri=join(folder, _TRAIN), eval_uri=join(folder, _HELD_OUT))
    storage = open_storage(folder)
    if not storage.exists(uris.train_uri):
        with tempfile.TemporaryDirectory(prefix="tpuctl-corpus-") as scratch:
            local = Path(scratch) / "built"
            _write(local, uri=uri)
            # The one that is looked for goes last. Two who do this at once write the same bytes.
            storage.put_file(local / _HELD_OUT, join(folder, _HELD_OUT))
            storage.put_file(local / _TRAIN, uris.train_uri)
    return uris


def _write(folder: Path, *, uri: str) -> None:
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
    if uri == PYTHON_HELP:
        tables = _conversation_table(training), _conversation_table(held_out)
    else:
        sections = [(path, section) for path, text in training.items() for section in _sections(text)]
        tables = _text_table(sorted(sections, key=lambda item: _digest(item[1]))), _text_table(list(held_out.items()))
    for name, table in zip((_TRAIN, _HELD_OUT), tables, strict=True):
        pq.write_table(
            table, partial / name, row_group_size=_ROWS_PER_GROUP, compression="zstd", write_page_checksum=True
        )
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


def _text_table(documents: list[tuple[str, str]]) -> pa.Table:
    return pa.table({"path": [path for path, _ in documents], "text": [text for _, text in documents]})


def _conversation_table(documents: dict[str, str]) -> pa.Table:
    """A row for each conversation: its question alone, for who wants another answer, and all its messages."""
    found = sorted(conversations(documents), key=lambda item: _digest(item.answer))
    messages = [
        [{"role": "user", "content": item.question}, {"role": "assistant", "content": item.answer}] for item in found
    ]
    return pa.table(
        {"name": [item.name for item in found], "prompt": [item.question for item in found], "messages": messages}
    )


if __name__ == "__main__":
    main()
