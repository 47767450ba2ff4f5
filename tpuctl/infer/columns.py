"""Columns carried from the input: one schema for all files, and every batch made to fit it, values unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tpuctl.errors import DataError

ROW_ID = pa.schema([("row_file", pa.string()), ("row_group", pa.int32()), ("row_index", pa.int64())])
"""The row id: the file's name below the dataset's root, the number of the row group in it, of the row in that."""

Keys = tuple[tuple[str, str | None], ...]


def one_schema(files: Sequence[tuple[str, pa.Schema, Keys]], *, columns: tuple[str, ...]) -> pa.Schema:
    """The schema in which the named columns of all files fit without loss; with no names, all their columns.

    Every field may be null, whatever the files say. ``files`` are path, schema and partition keys of each.

    Raises:
        DataError: a column is missing somewhere, twice in a file, of types that don't fit, or named like the row id.
    """
    names = columns or tuple(dict.fromkeys(name for _, schema, keys in files[:1] for name in _names(schema, keys)))
    fields = [_unified(name, files) for name in names]
    if not columns:
        _require_no_more(names, files)
    for name in names:
        if name in ROW_ID.names:
            hint = "name the columns to carry in data.columns, without it"
            raise DataError(f"{files[0][0]}: column {name!r} has the name of a part of the row id", hint=hint)
    return pa.schema(fields)


def fitted(batch: pa.RecordBatch, schema: pa.Schema, *, keys: Keys) -> pa.RecordBatch:
    """The batch in that schema; partition keys become columns where the file has none of that name."""
    given = dict(keys)
    arrays = [
        _cast(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(given[field.name], field.type), batch.num_rows)
        for field in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def _names(schema: pa.Schema, keys: Keys) -> list[str]:
    return [*schema.names, *(name for name, _ in keys if name not in schema.names)]


def _unified(name: str, files: Sequence[tuple[str, pa.Schema, Keys]]) -> pa.Field:
    kind, first = pa.null(), ""
    for path, schema, keys in files:
        found = _type_in(name, path, schema, keys)
        joined = _joined(kind, found)
        if joined is None:
            raise DataError(
                f"column {name!r} is {kind} in {first}, but {found} in {path}",
                hint="write it with one type, or leave it out of data.columns",
            )
        if joined != kind:
            kind, first = joined, path
    return pa.field(name, kind)


def _type_in(name: str, path: str, schema: pa.Schema, keys: Keys) -> pa.DataType:
    count = schema.names.count(name)
    if count == 1:
        return _nullable(schema.field(name).type)
    if count == 0 and name in dict(keys):
        return pa.string()
    state = "no" if count == 0 else "more than one"
    listed = ", ".join(_names(schema, keys)) or "none"
    raise DataError(f"{path}: {state} column {name!r}; columns: {listed}", hint="name the columns in data.columns")


def _require_no_more(names: tuple[str, ...], files: Sequence[tuple[str, pa.Schema, Keys]]) -> None:
    for path, schema, keys in files:
        more = [name for name in _names(schema, keys) if name not in names]
        if more:
            hint = "name the columns to carry in data.columns"
            raise DataError(f"{path}: column {more[0]!r} is not in {files[0][0]}", hint=hint)


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrower of the types that hold every value of both, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if nested := _joined_nested(one, other):
        return nested
    for family in (
        _is_text,
        _is_binary,
        pa.types.is_signed_integer,
        pa.types.is_unsigned_integer,
        pa.types.is_floating,
    ):
        if family(one) and family(other):
            return _wider(one, other)
    return None


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if _is_text(one):
        return pa.large_string()
    if _is_binary(one):
        return pa.large_binary()
    return one if one.bit_width >= other.bit_width else other


def _joined_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if _is_list(one) and _is_list(other):
        item = _joined(one.value_type, other.value_type)
        plain = pa.types.is_list(one) and pa.types.is_list(other)
        return None if item is None else (pa.list_ if plain else pa.large_list)(item)
    if pa.types.is_struct(one) and pa.types.is_struct(other) and _field_names(one) == _field_names(other):
        kinds = [_joined(one.field(i).type, other.field(i).type) for i in range(one.num_fields)]
        if None not in kinds:
            return pa.struct(list(zip(_field_names(one), kinds, strict=True)))
    return None


def _field_names(kind: pa.StructType) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)]


def _is_text(kind: pa.DataType) -> bool:
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(plain or (pa.types.is_dictionary(kind) and _is_text(kind.value_type)))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with nothing in it that must not be null: such a promise of the input binds no output."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _nullable(f.type)) for f in (kind.field(i) for i in range(kind.num_fields))])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_nullable(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_nullable(kind.value_type))
    return kind


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)
