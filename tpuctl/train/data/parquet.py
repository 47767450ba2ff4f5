"""One parquet file: is it readable, has it the text column, what is in a row group. Every error names the file.

Only the text column is ever read, so other columns may differ between files as they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.errors import DataError
from tpuctl.storage import is_gcs
from tpuctl.storage.object_file import ObjectFile

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


def read_footer(path: str, *, column: str) -> Footer:
    """Read and check a file's footer.

    Raises:
        DataError: not a parquet file, no such column, or a column that holds no text.
    """
    with _open(path) as file:
        index = _text_column_index(file, path=path, column=column)
        metadata = file.metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        chunks = [group.column(index) for group in groups]
        all_null = pa.types.is_null(file.schema_arrow.field(column).type)
        return Footer(
            group_rows=tuple(group.num_rows for group in groups),
            group_bytes=tuple(chunk.total_uncompressed_size for chunk in chunks),
            null_rows=file.metadata.num_rows if all_null else sum(map(_counted_nulls, chunks)),
        )


def read_group(path: str, group: int, *, column: str) -> Iterator[pa.Array]:
    """The text column of one row group, a few MiB at a time, as ``large_string`` arrays.

    Raises:
        DataError: the file can't be read or decoded.
    """
    with _open(path) as file:
        _text_column_index(file, path=path, column=column)
        chunk = file.metadata.row_group(group)
        row_bytes = 1 + chunk.total_byte_size // max(1, chunk.num_rows)
        rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))
        try:
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=[column], use_threads=False):
                yield batch.column(0).cast(pa.large_string())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: row group {group}, column {column!r} can't be read: {error}") from error


def _open(path: str) -> pq.ParquetFile:
    source, buffer = (ObjectFile(path), _BUCKET_BUFFER_BYTES) if is_gcs(path) else (path, _READ_BUFFER_BYTES)
    try:
        return pq.ParquetFile(source, buffer_size=buffer, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} can't be read as parquet: {error}",
            hint="remove the file, write it anew, or name only good ones in data.uri (a glob may)",
        ) from error


def _text_column_index(file: pq.ParquetFile, *, path: str, column: str) -> int:
    """The column's number among the file's leaves, once its type is known to be text."""
    schema = file.schema_arrow
    if schema.names.count(column) != 1:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
        state = "no" if column not in schema.names else "more than one"
        raise DataError(f"{path}: {state} column {column!r}; columns: {found}", hint="set data.text_column")
    kind = schema.field(column).type
    if not _is_text(kind):
        raise DataError(
            f"{path}: column {column!r} is {kind}, expected string",
            hint="name a column of text in data.text_column, or write this one as string",
        )
    leaves = [file.schema.column(i).path for i in range(len(file.schema))]
    return leaves.index(column)


def _counted_nulls(chunk: pq.ColumnChunkMetaData) -> int:
    counted = chunk.is_stats_set and chunk.statistics.has_null_count
    return int(chunk.statistics.null_count) if counted else 0


def _is_text(kind: pa.DataType) -> bool:
    """Strings of every layout; a column that is null throughout is text with nothing in it."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)
