"""The index of a dataset: its files, their row groups and rows, and a fingerprint. Made once, sent to every host."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa

from tpuctl.errors import DataError
from tpuctl.listing import ListedFile, list_files
from tpuctl.train.data.columns import Columns, not_utf8, row_texts
from tpuctl.train.data.parquet import Footer, read_footer, read_group

_log = logging.getLogger(__name__)

# Footers are waited for, not computed: far more threads than cores pay off, on object stores most of all.
_FOOTER_THREADS = 32
_MANY_FILES = 100
_TELL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFile:
    """One file: rows and uncompressed text bytes of each of its row groups."""

    name: str
    path: str
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A dataset's index, sorted by file name.

    ``fingerprint`` depends on the files' names below the dataset's root and on what their footers say, not on where
    the dataset lies. ``null_rows`` counts the rows without text as far as the footers count them.
    """

    uri: str
    columns: Columns
    files: tuple[CorpusFile, ...]
    null_rows: int
    fingerprint: str

    @property
    def num_rows(self) -> int:
        """Rows of all files, with those that hold no text."""
        return sum(sum(file.group_rows) for file in self.files)

    @property
    def text_bytes(self) -> int:
        """Bytes of the columns before compression, roughly those of the text."""
        return sum(sum(file.group_bytes) for file in self.files)


def open_corpus(uri: str, *, columns: Columns, tell: Callable[[str], None] = _log.info) -> Corpus:
    """Index the dataset at ``uri``: list it, read and check all footers, make sure there is text in it.

    ``tell`` hears of it while that takes long.

    Raises:
        DataError: no files, an unreadable one, a column that is missing or holds no text, or no text at all.
        StorageError: a place we can't read from.
    """
    listed = list_files(uri)
    footers = _footers(uri, listed, columns=columns, tell=tell)
    files = tuple(map(_corpus_file, listed, footers))
    corpus = Corpus(
        uri=uri,
        columns=columns,
        files=files,
        null_rows=sum(footer.null_rows for footer in footers),
        fingerprint=_fingerprint(files, columns=columns),
    )
    _require_text(corpus)
    _log.info("%s: %d rows in %d files, %d of them null", uri, corpus.num_rows, len(files), corpus.null_rows)
    return corpus


def iter_rows(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Every row of the corpus with its place, in file order, nulls and empty strings left out."""
    for file in corpus.files:
        for group in range(len(file.group_rows)):
            rows = chain.from_iterable(
                _texts(array, path=file.path, columns=corpus.columns)
                for array in read_group(file.path, group, columns=corpus.columns)
            )
            yield from ((f"{file.path}: row group {group}, row {row}", text) for row, text in enumerate(rows) if text)


def iter_texts(corpus: Corpus) -> Iterator[str]:
    """Every text of the corpus in file order: the rows, or of conversations what is said in them."""
    for _, row in iter_rows(corpus):
        yield from row_texts(row, kind=corpus.columns.kind)


def _texts(array: pa.Array, *, path: str, columns: Columns) -> list[str | None]:
    try:
        texts: list[str | None] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise not_utf8(error, path=path, columns=columns) from error
    return texts


def _footers(uri: str, listed: Sequence[ListedFile], *, columns: Columns, tell: Callable[[str], None]) -> list[Footer]:
    if len(listed) >= _MANY_FILES:
        tell(f"{uri}: reading the footers of {len(listed)} files")
    said, footers = time.monotonic(), []
    with ThreadPoolExecutor(max_workers=_FOOTER_THREADS) as pool:
        for footer in pool.map(partial(read_footer, columns=columns), [file.path for file in listed]):
            footers.append(footer)
            if time.monotonic() - said > _TELL_SECONDS:
                said = time.monotonic()
                tell(f"{uri}: {len(footers)} of {len(listed)} footers read")
    return footers


def _corpus_file(listed: ListedFile, footer: Footer) -> CorpusFile:
    return CorpusFile(name=listed.name, path=listed.path, group_rows=footer.group_rows, group_bytes=footer.group_bytes)


def _fingerprint(files: tuple[CorpusFile, ...], *, columns: Columns) -> str:
    read = columns.names[0] if columns.kind == "text" else [columns.kind, *columns.names]
    facts = [read, [(file.name, file.group_rows, file.group_bytes) for file in files]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _require_text(corpus: Corpus) -> None:
    """A lane looks for its next document for as long as it takes; in a corpus without any that would be for ever."""
    if next(iter_texts(corpus), None) is None:
        raise DataError(
            f"{corpus.uri}: {corpus.num_rows} row{'s' * (corpus.num_rows != 1)} in "
            f"{len(corpus.files)} file{'s' * (len(corpus.files) != 1)}, "
            f"and column {' or '.join(map(repr, corpus.columns.names))} is null or empty in all of them"
        )
