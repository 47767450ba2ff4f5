"""How each row's answer is drawn: the recipe's parameters with a row's own over them, its seed, its grammar."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tpuctl.engine.grammar import CompiledGrammar, GrammarCompiler
from tpuctl.engine.request import Grammar, RequestError, SamplingParams
from tpuctl.errors import DataError, UsageError
from tpuctl.infer.columns import ROW_ID
from tpuctl.plan.infer_schema import SAMPLING_COLUMNS, SamplingPlan

_SCHEMA = "json_schema"
_PARAMETERS = {item.name for item in fields(SamplingParams)}
# Schemas compiled and kept; rows mostly share a few.
_KEPT_SCHEMAS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Parameters and grammar of the rows that are good, by number; the reason of each of the others."""

    params: dict[int, SamplingParams] = field(default_factory=dict)
    grammars: dict[int, Grammar] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)


class Drawing:
    """Says how the rows of a plan are drawn. A row's seed follows from the plan's and its id, unless it has its own."""

    def __init__(self, plan: SamplingPlan, *, compiler: Callable[[], GrammarCompiler]) -> None:
        """``compiler`` is called once, and only if a grammar is needed.

        Raises:
            UsageError: the plan's JSON schema is none, or one that can't be bound.
        """
        self._plan = plan
        self._common = {name: getattr(plan, name) for name in (*SAMPLING_COLUMNS, "n") if name in _PARAMETERS}
        self._compiler = functools.cache(compiler)
        self._compiled = functools.lru_cache(_KEPT_SCHEMAS)(self._compile)
        if plan.json_schema is not None:
            try:
                self._compiled(plan.json_schema)
            except RequestError as error:
                raise UsageError(f"sampling.json_schema: {error.message}") from error

    def of(self, rows: pa.Table) -> Drawn:
        """How each row is drawn.

        Raises:
            DataError: a column that isn't there.
        """
        own = {parameter: _values(rows, place) for parameter, place in self._plan.columns.items()}
        ids = [rows.column(name).to_pylist() for name in ROW_ID.names]
        drawn = Drawn()
        for row in range(rows.num_rows):
            given = {name: _whole(values[row]) for name, values in own.items() if values[row] is not None}
            seed = _seed(self._plan.seed, *(column[row] for column in ids))
            try:
                self._draw(drawn, row, {"seed": seed, **given})
            except RequestError as error:
                drawn.bad[row] = error.message
        return drawn

    def _draw(self, drawn: Drawn, row: int, given: dict[str, Any]) -> None:
        schema = given.pop(_SCHEMA, self._plan.json_schema)
        params = SamplingParams(**{**self._common, **given})
        if schema is not None:
            drawn.grammars[row] = self._compiled(schema).fork()
        drawn.params[row] = params

    def _compile(self, schema: str) -> CompiledGrammar:
        try:
            document = json.loads(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"json_schema is no JSON: {error}", param=_SCHEMA) from error
        return self._compiler().json_schema(document, param=_SCHEMA)


def _values(rows: pa.Table, place: str) -> list[Any]:
    """A column's values, or those of a field of a struct column."""
    name, _, inner = place.partition(".")
    column = rows.column(name)
    if not inner:
        return list(column.to_pylist())
    names = (
        [column.type.field(i).name for i in range(column.type.num_fields)] if pa.types.is_struct(column.type) else []
    )
    if inner not in names:
        raise DataError(f"column {name!r} is {column.type} and has no field {inner!r}", hint="see sampling.columns")
    return list(pc.struct_field(column, inner).to_pylist())


def _whole(value: Any) -> Any:
    """Whole numbers that are floats, as a column of integers with nulls in it often has been made, as integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seed(*facts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=7).digest(), "big")
