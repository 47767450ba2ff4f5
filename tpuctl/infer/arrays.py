"""Between Arrow columns and the arrays a function works on.

To arrays: numbers and booleans as they are (float16 as float32), times as numpy has them, text, bytes and everything
else as Python objects, lists of a fixed size as one more axis. To Arrow: by dtype; bfloat16 and float16, which
parquet's readers know poorly or not at all, become float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpuctl.errors import DataError

_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Columns as arrays of all rows; ``bad`` has the number and the reason of each row that has no value in them."""

    arrays: dict[str, np.ndarray]
    bad: dict[int, str]


def array_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns that can be arrays of numbers."""
    return tuple(field.name for field in schema if _is_number(_item(field.type)))


def to_arrays(table: pa.Table, names: Sequence[str]) -> Inputs:
    """The named columns as arrays.

    Raises:
        DataError: a column that isn't there, or whose rows are lists of any length.
    """
    arrays: dict[str, np.ndarray] = {}
    bad: dict[int, str] = {}
    for name in names:
        column = _column(table, name, bad)
        arrays[name] = _array(name, column, bad)
    return Inputs(arrays=arrays, bad=bad)


def to_objects(table: pa.Table, names: Sequence[str]) -> Inputs:
    """The named columns as Python objects, of whatever type they are.

    Raises:
        DataError: a column that isn't there.
    """
    arrays: dict[str, np.ndarray] = {}
    bad: dict[int, str] = {}
    for name in names:
        column = _column(table, name, bad)
        arrays[name] = _objects(name, column, bad)
    return Inputs(arrays=arrays, bad=bad)


def from_arrays(columns: dict[str, Any], *, rows: int, good: np.ndarray) -> pa.Table:
    """A function's result as a table of the ``good`` rows of a batch of ``rows``.

    Raises:
        DataError: no dict of columns, one of another length, or values of which Arrow makes no column.
    """
    if not isinstance(columns, dict) or not all(isinstance(name, str) for name in columns):
        raise DataError(f"the function returned {type(columns).__name__}, expected a dict of new columns by name")
    return pa.table({name: _new_column(name, values, rows, good) for name, values in columns.items()})


def padded(array: np.ndarray, numbers: np.ndarray, *, rows: int) -> np.ndarray:
    """The array's rows of these numbers, and as many empty ones as make ``rows``."""
    out = np.zeros((rows, *array.shape[1:]), array.dtype)
    if array.dtype == object:
        filler = next((value for value in array if value is not None), None)
        out[:] = type(filler)() if isinstance(filler, str | bytes) else filler
    out[: len(numbers)] = array[numbers]
    return out


def _column(table: pa.Table, name: str, bad: dict[int, str]) -> pa.Array:
    """A column in one piece; where it is null, the row is a bad one."""
    if name not in table.schema.names:
        listed = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise DataError(f"no column {name!r} for the task; columns: {listed}", hint="see task.inputs and data.columns")
    chunks = table.column(name)
    if chunks.num_chunks == 1:
        column = chunks.chunk(0)
    else:
        column = chunks.combine_chunks() if chunks.num_chunks else pa.array([], chunks.type)
    for row in np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False)):
        bad.setdefault(int(row), f"column {name!r} is null")
    return column


def _array(name: str, column: pa.Array, bad: dict[int, str]) -> np.ndarray:
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and _is_number(_item(kind)):
        return _stacked(name, column, bad)
    if _is_list(kind):
        raise DataError(
            f"column {name!r} is {kind}: its rows have any length, so they are no array",
            hint="name the columns that the function needs in task.inputs; or write this one as a list of a fixed size",
        )
    if _is_number(kind):
        return _numbers(column)
    return _objects(name, column, bad)


def _stacked(name: str, column: pa.FixedSizeListArray, bad: dict[int, str]) -> np.ndarray:
    size = column.type.list_size
    filled = column
    if column.null_count:
        zeros = pa.scalar([0] * size, column.type)
        filled = pa.array([zeros.as_py() if value is None else value for value in column.to_pylist()], column.type)
    items = filled.flatten()
    holes = pc.is_null(items).to_numpy(zero_copy_only=False).reshape(len(column), -1).any(axis=1)
    for row in np.flatnonzero(holes):
        bad.setdefault(int(row), f"column {name!r} has a null in its list")
    inner = _stacked(name, items, {}) if pa.types.is_fixed_size_list(items.type) else _numbers(items)
    return inner.reshape(len(column), size, *inner.shape[1:])


def _numbers(column: pa.Array) -> np.ndarray:
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    zero = False if pa.types.is_boolean(column.type) else 0
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(zero, column.type)) if not _is_time(column.type) else column
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _objects(name: str, column: pa.Array, bad: dict[int, str]) -> np.ndarray:
    out = np.empty(len(column), object)
    try:
        out[:] = column.to_pylist()
        return out
    except UnicodeDecodeError:
        for row in range(len(column)):
            try:
                out[row] = column[row].as_py()
            except UnicodeDecodeError as error:
                bad.setdefault(row, f"column {name!r} is no UTF-8: {error.reason} at byte {error.start}")
    return out


def _new_column(name: str, values: Any, rows: int, good: np.ndarray) -> pa.Array:
    array = values if isinstance(values, list) else np.asarray(values)
    length = len(array) if isinstance(array, list) or array.ndim else 0
    if length != rows:
        raise DataError(f"new column {name!r} has {length} rows, expected {rows}, those of the batch")
    if isinstance(array, list):
        array = _object_array(array)
    if array.dtype.name in _NARROW:
        array = array.astype(np.float32)
    return _arrow(name, array[good], numbers=good)


def _object_array(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _arrow(name: str, array: np.ndarray, *, numbers: np.ndarray) -> pa.Array:
    if array.ndim > 1:
        inner = _arrow(name, array.reshape(-1, *array.shape[2:]), numbers=numbers)
        return pa.FixedSizeListArray.from_arrays(inner, array.shape[1])
    try:
        found = pa.array(array.tolist() if array.dtype == object else array)
    except (pa.ArrowException, OverflowError) as error:
        raise _no_column(name, array, numbers) from error
    # All rows may be None by chance; text is what a column of reasons or answers will hold later on.
    return found.cast(pa.string()) if pa.types.is_null(found.type) else found


def _no_column(name: str, array: np.ndarray, numbers: np.ndarray) -> DataError:
    kinds = [(number, type(value).__name__) for number, value in zip(numbers, array, strict=False) if value is not None]
    other = next((item for item in kinds if item[1] != kinds[0][1]), None) if array.dtype == object else None
    if other is None:
        return DataError(f"new column {name!r}: no Arrow column can be made of {array.dtype}")
    (row, kind), (other_row, other_kind) = kinds[0], other
    return DataError(
        f"new column {name!r} mixes types: {kind} in row {row} of the batch, {other_kind} in row {other_row}",
        hint="let the function return one type per column",
    )


def _item(kind: pa.DataType) -> pa.DataType:
    return _item(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return plain or _is_time(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
