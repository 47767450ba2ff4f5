"""Reading the rows of a part. Parquet is decoded from a group's start on, so a reader goes on where it left off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.infer.columns import ROW_ID, fitted
from tpuctl.infer.parts import Part, Span, spans
from tpuctl.infer.rows import InputFile, Rows, open_parquet, unreadable

_BATCH_ROWS = 16_384
_BATCH_BYTES = 16 << 20


class Reader:
    """Reads parts, cheapest in their order. Not for several threads at once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._group: _OpenGroup | None = None
        self._file: _OpenFile | None = None

    def read(self, part: Part) -> pa.Table:
        """The rows of a part: row id, then the carried columns.

        Raises:
            DataError: a file can't be read or decoded.
        """
        pieces = [piece for span in spans(self._rows, part) for piece in self._span(span)]
        return pa.Table.from_batches(pieces, schema=pa.schema([*ROW_ID, *self._rows.schema]))

    def close(self) -> None:
        """Let go of the open file."""
        if self._file is not None:
            self._file.close()
        self._file = self._group = None

    def _span(self, span: Span) -> Iterator[pa.RecordBatch]:
        group = self._at(span)
        file = self._rows.files[span.file]
        row = span.start
        for batch in group.take(span.rows):
            columns = fitted(batch, self._rows.schema, keys=file.keys)
            yield _with_ids(columns, file=file, group=span.group, row=row)
            row += batch.num_rows

    def _at(self, span: Span) -> _OpenGroup:
        group = self._group
        if group is None or (group.file, group.group) != (span.file, span.group) or group.row > span.start:
            group = self._group = self._open(span)
        group.skip(span.start - group.row)
        return group

    def _open(self, span: Span) -> _OpenGroup:
        if self._file is None or self._file.number != span.file:
            self.close()
            self._file = _OpenFile(self._rows.files[span.file].path, number=span.file)
        return _OpenGroup(self._file, self._rows, file=span.file, group=span.group)


class _OpenFile:
    def __init__(self, path: str, *, number: int) -> None:
        self._stack = ExitStack()
        self.number = number
        self.path = path
        self.parquet: pq.ParquetFile = self._stack.enter_context(open_parquet(path))

    def close(self) -> None:
        self._stack.close()


class _OpenGroup:
    """A row group that is being decoded; ``row`` is the next one that comes."""

    def __init__(self, opened: _OpenFile, rows: Rows, *, file: int, group: int) -> None:
        self.file, self.group, self.row = file, group, 0
        self._path = opened.path
        names = [name for name in rows.schema.names if name in opened.parquet.schema_arrow.names]
        facts = rows.files[file]
        row_bytes = max(1, facts.group_bytes[group] // max(1, facts.group_rows[group]))
        # With no column of the file's own there is still the number of rows to read, so one is decoded for it.
        wanted = names or opened.parquet.schema_arrow.names[:1]
        self._batches = opened.parquet.iter_batches(
            batch_size=max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes)), row_groups=[group], columns=wanted
        )
        self._rest: pa.RecordBatch | None = None

    def skip(self, count: int) -> None:
        """Pass over rows."""
        for _ in self.take(count):
            pass

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """The next rows, in batches that end with the last of them."""
        while count:
            batch = self._next()
            taken = batch.slice(0, count)
            self._rest = batch.slice(taken.num_rows) if taken.num_rows < batch.num_rows else None
            self.row += taken.num_rows
            count -= taken.num_rows
            yield taken

    def _next(self) -> pa.RecordBatch:
        if self._rest is not None:
            return self._rest
        try:
            return next(self._batches)
        except StopIteration as error:
            raise unreadable(
                self._path, f"row group {self.group} has fewer rows than its footer says", error
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self._path, f"row group {self.group} can't be read", error) from error


def _with_ids(columns: pa.RecordBatch, *, file: InputFile, group: int, row: int) -> pa.RecordBatch:
    count = columns.num_rows
    ids = [
        pa.repeat(pa.scalar(file.name, pa.string()), count),
        pa.repeat(pa.scalar(group, pa.int32()), count),
        pa.array(np.arange(row, row + count, dtype=np.int64)),
    ]
    return pa.record_batch([*ids, *columns.columns], schema=pa.schema([*ROW_ID, *columns.schema]))
