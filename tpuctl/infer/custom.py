"""The custom task: a function of the user's on batches that all have the same shape, so that it compiles once.

The function gets a dict of arrays and a mask of the rows that count, and returns a dict of arrays: the new columns.
``module:name`` may also be a class: made once, called for each batch.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tpuctl.errors import DataError, TpuctlError, UsageError
from tpuctl.infer.arrays import Inputs, array_columns, from_arrays, padded, to_arrays
from tpuctl.infer.task import Tell, Worked, tell_nobody
from tpuctl.plan.infer_schema import TaskPlan

Function = Callable[[dict[str, np.ndarray], np.ndarray], dict[str, Any]]


class CustomTask:
    """Runs a function on rows, in batches of ``batch_rows``, the last one of some rows filled up."""

    def __init__(self, function: Function, *, inputs: Iterable[str], batch_rows: int) -> None:
        self._function = function
        self._inputs = tuple(inputs)
        self._batch_rows = batch_rows
        self._turn = threading.Lock()

    @classmethod
    def of(cls, plan: TaskPlan, schema: pa.Schema) -> CustomTask:
        """The task of a plan on rows of that schema.

        Raises:
            UsageError: no such module or function.
        """
        assert plan.function is not None, "plan.infer refuses a custom task without one"
        inputs = plan.inputs or cls.default_inputs(schema)
        return cls(load_function(plan.function), inputs=inputs, batch_rows=plan.batch_rows)

    @staticmethod
    def default_inputs(schema: pa.Schema) -> tuple[str, ...]:
        """What a function gets if no columns are named: all that can be arrays of numbers."""
        return array_columns(schema)

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """The function's columns for these rows. A row at which it raises, alone in its batch, is a bad one."""
        inputs = to_arrays(rows, self._inputs)
        usable = np.array([row for row in range(rows.num_rows) if row not in inputs.bad], np.int64)
        bad = dict(inputs.bad)
        with self._turn:
            began = time.monotonic()
            batches = [usable[at : at + self._batch_rows] for at in range(0, len(usable), self._batch_rows)]
            tables = []
            for batch in batches:
                tables += self._batch(inputs, batch, bad)
                tell(len(batch))
            if not tables:
                # What columns there would be is known to the function alone.
                tables = [self._call(inputs, usable[:0])]
            busy = time.monotonic() - began
        good = np.array([row for row in usable if row not in bad], np.int64)
        return Worked(columns=_concatenated(tables), good=good, bad=tuple(sorted(bad.items())), busy_seconds=busy)

    def _batch(self, inputs: Inputs, numbers: np.ndarray, bad: dict[int, str]) -> list[pa.Table]:
        """The new columns of these rows; where the function raises, of each half of them."""
        try:
            return [self._call(inputs, numbers)]
        except TpuctlError:
            raise
        except Exception as error:  # noqa: BLE001 — whatever a user's function raises is the fate of one row
            if len(numbers) == 1:
                bad[int(numbers[0])] = f"{type(error).__name__}: {error}"
                return []
        middle = len(numbers) // 2
        return [*self._batch(inputs, numbers[:middle], bad), *self._batch(inputs, numbers[middle:], bad)]

    def _call(self, inputs: Inputs, numbers: np.ndarray) -> pa.Table:
        size = self._batch_rows
        batch = {name: padded(array, numbers, rows=size) for name, array in inputs.arrays.items()}
        found = self._function(batch, np.arange(size) < len(numbers))
        return from_arrays(found, rows=size, good=np.arange(len(numbers)))


def load_function(name: str) -> Function:
    """The function that ``module:name`` means; a class is made an object.

    Raises:
        UsageError: no such module, or nothing of that name in it that can be called.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        hint = "it travels with the job if it lies in the directory tpuctl is called in"
        raise UsageError(f"task.function {name!r}: no module {module_name!r}", hint=hint) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UsageError(f"task.function {name!r}: {module_name} has no function {attribute!r}")
    function: Function = found() if isinstance(found, type) else found
    return function


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        kinds = "; ".join(dict.fromkeys(str(table.schema).replace("\n", ", ") for table in tables))
        raise DataError(f"the function's columns differ from batch to batch: {kinds}") from error
