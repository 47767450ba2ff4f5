"""Templates filled from rows: each row's text, or why it has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tpuctl.infer.arrays import to_objects
from tpuctl.plan.row_template import columns, parts


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTexts:
    """The texts of the rows that are good, by number; the reason of each of the others."""

    texts: dict[int, str] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)


def filled(rows: pa.Table, template: str) -> RowTexts:
    """The template with each row's values: text as it is, lists and structs as JSON, all else as Python writes it.

    Raises:
        DataError: a column that isn't there.
    """
    inputs = to_objects(rows, columns(template))
    found = RowTexts(bad=dict(inputs.bad))
    pieces = parts(template)
    for row in range(rows.num_rows):
        if row in found.bad:
            continue
        values = {name: array[row] for name, array in inputs.arrays.items()}
        holding = next((name for name, value in values.items() if isinstance(value, bytes)), None)
        if holding is not None:
            found.bad[row] = f"column {holding!r} holds bytes, no text"
            continue
        found.texts[row] = "".join(literal + ("" if name is None else _text(values[name])) for literal, name in pieces)
    return found


def texts_of(rows: pa.Table, column: str) -> RowTexts:
    """A column of texts, as it is.

    Raises:
        DataError: it isn't there.
    """
    inputs = to_objects(rows, [column])
    found = RowTexts(bad=dict(inputs.bad))
    for row, value in enumerate(inputs.arrays[column]):
        if row in found.bad:
            continue
        if isinstance(value, str):
            found.texts[row] = value
        else:
            found.bad[row] = f"column {column!r} holds {type(value).__name__}, no text"
    return found


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, Sequence | dict) else str(value)
