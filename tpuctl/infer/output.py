"""The output folder: parts under their final names only when they are whole, and what is known of each.

    part-KEY-000012.parquet             rows of one part; that it is there means that it is done
    _quarantine/KEY-000012.parquet      the part's bad rows: row id and reason
    _tpuctl/KEY/work.json               which work this is, written first
    _tpuctl/KEY/columns.arrow           the schema of the new columns, the same for all parts
    _tpuctl/KEY/000012.json             what is known of the part
    _manifest.json, _SUCCESS            at the very end

KEY names the work. Whoever writes a part writes it only if it isn't there: of two workers at the same part the first
one's stands.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.errors import DataError
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.parts import Part
from tpuctl.storage import ABSENT, ChangedError, NotFoundError, join, open_storage

QUARANTINE = pa.schema([*ROW_ID, pa.field("reason", pa.string())])
"""What a quarantine file says of a bad row."""

_FACTS = b"tpuctl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A part that is done. ``rows`` are those written; ``bytes`` and ``sha256`` are the file's."""

    index: int
    file: str
    rows: int
    quarantined: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRows:
    """The rows of a part after the task: those that are good, with their new columns, and those that aren't."""

    part: Part
    good: pa.Table
    bad: pa.Table


class Output:
    """The folder as one work sees it."""

    def __init__(self, uri: str, *, key: str) -> None:
        self.uri = uri
        self.key = key
        self._storage = open_storage(uri)
        self._columns: pa.Schema | None = None

    def commit(self, done: PartRows) -> Record:
        """Write a part's files, that of its rows last; what is known of it, also if it was there already."""
        part, facts = done.part, {"key": self.key, "part": done.part.index, "quarantined": done.bad.num_rows}
        if done.bad.num_rows:
            self._storage.write(join(self.uri, self.quarantine_name(part.index)), encoded(done.bad, facts=facts))
        data, name = encoded(done.good, facts=facts), self.part_name(part.index)
        try:
            self._storage.write(join(self.uri, name), data, if_generation=ABSENT)
        except ChangedError:
            return self.record(part.index)
        record = Record(
            index=part.index,
            file=name,
            rows=done.good.num_rows,
            quarantined=done.bad.num_rows,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        self._write_record(record)
        return record

    def done(self) -> set[int]:
        """The numbers of the parts that are there."""
        head, tail = f"part-{self.key}-", ".parquet"
        names = [uri.rpartition("/")[2] for uri in self._storage.list(self.uri)]
        return {int(name[len(head) : -len(tail)]) for name in names if name.startswith(head) and name.endswith(tail)}

    def record(self, index: int) -> Record:
        """What is known of a part that is there; found out anew if its writer died before it wrote that down."""
        try:
            return Record(**json.loads(self._storage.read(self._record_uri(index)).data))
        except NotFoundError:
            record = self._record_of_file(index)
            self._write_record(record)
            return record

    def agree(self, columns: pa.Schema) -> pa.Schema:
        """The schema of the new columns: that of the first part to be done, this one's if it is the first."""
        if self._columns is None:
            uri = join(self.uri, "_tpuctl", self.key, "columns.arrow")
            try:
                self._storage.write(uri, columns.serialize().to_pybytes(), if_generation=ABSENT)
                self._columns = columns
            except ChangedError:
                self._columns = pa.ipc.read_schema(pa.py_buffer(self._storage.read(uri).data))
        return self._columns

    def part_name(self, index: int) -> str:
        """The name of a part's file."""
        return f"part-{self.key}-{index:06d}.parquet"

    def quarantine_name(self, index: int) -> str:
        """The name of the file of a part's bad rows, below the folder."""
        return f"_quarantine/{self.key}-{index:06d}.parquet"

    def _record_uri(self, index: int) -> str:
        return join(self.uri, "_tpuctl", self.key, f"{index:06d}.json")

    def _write_record(self, record: Record) -> None:
        self._storage.write(self._record_uri(record.index), (json.dumps(asdict(record)) + "\n").encode())

    def _record_of_file(self, index: int) -> Record:
        name = self.part_name(index)
        data = self._storage.read(join(self.uri, name)).data
        footer = pq.read_metadata(io.BytesIO(data))
        facts = json.loads((footer.metadata or {}).get(_FACTS, b"{}"))
        return Record(
            index=index,
            file=name,
            rows=footer.num_rows,
            quarantined=facts["quarantined"],
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )


def encoded(table: pa.Table, *, facts: Mapping[str, object]) -> bytes:
    """The table as the bytes of a parquet file that holds ``facts`` in its footer."""
    metadata = {**(table.schema.metadata or {}), _FACTS: json.dumps(facts)}
    sink = pa.BufferOutputStream()
    # To look for values that repeat is half the cost of writing; vectors, scores and row numbers have none.
    repeating = [path for field in table.schema for path, kind in _leaves(field.name, field.type) if _may_repeat(kind)]
    dictionary = [path for path in repeating if path != ROW_ID.names[-1]]
    pq.write_table(
        table.replace_schema_metadata(metadata), sink, write_page_checksum=True, use_dictionary=dictionary or False
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def fit_new(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """New columns in the agreed schema, values unchanged.

    Raises:
        DataError: other columns than those of the parts before, or values that another type can't hold.
    """
    if table.schema.names != schema.names:
        raise DataError(f"the task gave the columns {table.schema.names}, but {schema.names} for earlier rows")
    return pa.table([_fit(table.column(field.name), field) for field in schema], schema=schema)


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The columns that parquet makes of a column: their paths there, and their types."""
    if pa.types.is_struct(kind):
        for field in (kind.field(i) for i in range(kind.num_fields)):
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def _may_repeat(kind: pa.DataType) -> bool:
    return not pa.types.is_floating(kind)


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise DataError(
            f"new column {field.name!r} is {column.type}, but was {field.type} for earlier rows: {error}",
            hint="let the function return arrays of one dtype",
        ) from error
