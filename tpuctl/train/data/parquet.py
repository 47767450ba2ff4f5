"""One parquet file: is it readable, has it the columns, what is in a row group. Every error names the file.

Only the columns that are learned are ever read, so others may differ between files as they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.errors import DataError
from tpuctl.storage import is_gcs
from tpuctl.storage.object_file import ObjectFile
from tpuctl.train.data.columns import Columns

# Decoded bytes to ask the reader for at a time; a row group may be larger than memory.
_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 4096
_READ_BUFFER_BYTES = 1 << 20
# Every fill of the buffer is a request, and a request to a bucket costs as much as some MiB.
_BUCKET_BUFFER_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """What a file says of itself: rows and text bytes of each row group; ``null_rows`` where it counted them."""

    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    null_rows: int


def read_footer(path: str, *, columns: Columns) -> Footer:
    """Read and check a file's footer.

    Raises:
        DataError: not a parquet file, no such column, or a column that holds something else.
    """
    with _open(path) as file:
        leaves = _leaves(file, path=path, columns=columns)
        metadata = file.metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        chunks = [[group.column(leaf) for leaf in leaves] for group in groups]
        all_null = any(pa.types.is_null(file.schema_arrow.field(name).type) for name in columns.names)
        # Of a nested column the leaves count their own nulls, which are not those of rows.
        counted = sum(_counted_nulls(leaf) for group in chunks for leaf in group) if columns.kind == "text" else 0
        return Footer(
            group_rows=tuple(group.num_rows for group in groups),
            group_bytes=tuple(sum(leaf.total_uncompressed_size for leaf in group) for group in chunks),
            null_rows=file.metadata.num_rows if all_null else counted,
        )


def read_group(path: str, group: int, *, columns: Columns) -> Iterator[pa.Array]:
    """The rows of one row group, a few MiB at a time, as ``large_string`` arrays.

    Raises:
        DataError: the file can't be read or decoded.
    """
    with _open(path) as file:
        _leaves(file, path=path, columns=columns)
        chunk = file.metadata.row_group(group)
        row_bytes = 1 + chunk.total_byte_size // max(1, chunk.num_rows)
        rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))
        names = list(columns.names)
        try:
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=names, use_threads=False):
                yield columns.rows(batch, path=path)
        except (pa.ArrowException, OSError) as error:
            named = " and ".join(map(repr, names))
            raise DataError(f"{path}: row group {group}, column {named} can't be read: {error}") from error


def _open(path: str) -> pq.ParquetFile:
    source, buffer = (ObjectFile(path), _BUCKET_BUFFER_BYTES) if is_gcs(path) else (path, _READ_BUFFER_BYTES)
    try:
        return pq.ParquetFile(source, buffer_size=buffer, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} can't be read as parquet: {error}",
            hint="remove the file, write it anew, or name only good ones in data.uri (a glob may)",
        ) from error


def _leaves(file: pq.ParquetFile, *, path: str, columns: Columns) -> list[int]:
    """The numbers of the columns' leaves in the file, once their types are known to be right."""
    schema = file.schema_arrow
    for name in columns.names:
        if schema.names.count(name) != 1:
            found = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
            state = "no" if name not in schema.names else "more than one"
            raise DataError(f"{path}: {state} column {name!r}; columns: {found}", hint=f"set {columns.key}")
        columns.check(name, schema.field(name).type, path=path)
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    tops = tuple(f"{name}." for name in columns.names)
    return [leaf for leaf, at in enumerate(paths) if at in columns.names or at.startswith(tops)]


def _counted_nulls(chunk: pq.ColumnChunkMetaData) -> int:
    counted = chunk.is_stats_set and chunk.statistics.has_null_count
    return int(chunk.statistics.null_count) if counted else 0
