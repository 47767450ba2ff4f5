"""The input as a list of rows: its files in order, their row groups, the columns that are carried, a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.errors import DataError, StorageError
from tpuctl.infer.columns import one_schema
from tpuctl.listing import ListedFile, list_files
from tpuctl.plan.infer_schema import InferDataPlan
from tpuctl.storage import open_storage
from tpuctl.storage.arrow import arrow_filesystem

# Footers are waited for, not computed: far more threads than cores pay off.
_FOOTER_THREADS = 32
_BUFFER_BYTES = 8 << 20
_NULL_KEY = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file. ``version`` changes when its content does; ``keys`` are the ``key=value`` folders it lies in."""

    name: str
    path: str
    version: str
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    keys: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a dataset in the order of its files, as many as are wanted.

    ``schema`` is that of the columns that are read, the same for every file; ``carried`` are those of them that the
    output has too. ``fingerprint`` depends on the files' names below the dataset's root and on their versions.
    """

    uri: str
    files: tuple[InputFile, ...]
    schema: pa.Schema
    carried: tuple[str, ...]
    num_rows: int
    fingerprint: str

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """File and row group of every group, in order."""
        return [(f, g) for f, file in enumerate(self.files) for g in range(len(file.group_rows))]

    @cached_property
    def group_starts(self) -> list[int]:
        """Number of each group's first row, counted over the whole input, and at the end the number of all rows."""
        return list(accumulate((self.files[f].group_rows[g] for f, g in self.groups), initial=0))

    @property
    def largest_row_bytes(self) -> float:
        """Bytes of a row before compression, in the group where they are largest on average."""
        sizes = (file.group_bytes[g] / max(1, rows) for file in self.files for g, rows in enumerate(file.group_rows))
        return max(sizes, default=0.0)


def open_rows(data: InferDataPlan, *, needed: Iterable[str] = ()) -> Rows:
    """Index the dataset: list it, read all footers, find one schema for the columns that are carried or ``needed``.

    Raises:
        DataError: nothing there, a file that is no parquet, a column that is missing or differs between files.
        StorageError: a place we can't read from.
    """
    listed = list_files(data.uri)
    with ThreadPoolExecutor(max_workers=_FOOTER_THREADS) as pool:
        found = list(pool.map(_index, listed))
    files = tuple(file for file, _ in found)
    columns = tuple(dict.fromkeys([*data.columns, *needed])) if data.columns else ()
    schema = one_schema([(file.path, file_schema, file.keys) for file, file_schema in found], columns=columns)
    total = sum(sum(file.group_rows) for file in files)
    return Rows(
        uri=data.uri,
        files=files,
        schema=schema,
        carried=data.columns or tuple(schema.names),
        num_rows=total if data.limit is None else min(data.limit, total),
        fingerprint=_digest([(file.name, file.version, file.group_rows) for file in files]),
    )


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """An open file.

    Raises:
        DataError: it is no parquet file.
    """
    try:
        filesystem, inner = arrow_filesystem(path)
        source = filesystem.open_input_file(inner)
        file = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, "can't be read as parquet", error) from error
    with source, file:
        yield file


def unreadable(path: str, what: str, error: Exception) -> DataError | StorageError:
    """The error for a file that can't be read."""
    hint = "remove the file, write it anew, or name only good ones in data.uri (a glob may)"
    return DataError(f"{path} {what}: {error}", hint=hint)


def _index(listed: ListedFile) -> tuple[InputFile, pa.Schema]:
    version = open_storage(listed.path).stat(listed.path)
    with open_parquet(listed.path) as file:
        groups = [file.metadata.row_group(g) for g in range(file.metadata.num_row_groups)]
        found = InputFile(
            name=listed.name,
            path=listed.path,
            version=f"{version.size}-{version.generation}",
            group_rows=tuple(group.num_rows for group in groups),
            group_bytes=tuple(group.total_byte_size for group in groups),
            keys=tuple(_keys(listed.path)),
        )
        return found, file.schema_arrow


def _keys(path: str) -> Iterable[tuple[str, str | None]]:
    """The partition columns that a file's folders name, as Hive writes them."""
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            yield unquote(name), None if value == _NULL_KEY else unquote(value)


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
