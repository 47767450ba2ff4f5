"""One replica: parts in, records out. Reading, working and writing of different parts go on side by side."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tpuctl.errors import DataError
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.output import QUARANTINE, Output, PartRows, Record, fit_new
from tpuctl.infer.parts import Part
from tpuctl.infer.reader import Reader
from tpuctl.infer.rows import Rows
from tpuctl.infer.task import Task, Worked
from tpuctl.plan.infer_schema import BadRowRule


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A part that is done. ``reason`` is that of its first bad row.

    It took ``seconds`` from being given to being written; for ``busy_seconds`` of them the task had the devices.
    """

    record: Record
    tokens: int
    reason: str | None
    seconds: float
    busy_seconds: float


class Replica:
    """Does parts. Call ``do`` from several threads, so that the next part is read while one is worked on."""

    def __init__(self, rows: Rows, output: Output, task: Task, *, bad_rows: BadRowRule) -> None:
        self._reader = Reader(rows)
        self._reading = threading.Lock()
        self._carried = rows.carried
        self._output = output
        self._task = task
        self._bad_rows = bad_rows
        self._underway: dict[int, float] = {}

    @property
    def underway(self) -> int:
        """Rows that are done of parts that aren't."""
        return int(sum(list(self._underway.values())))

    def do(self, part: Part) -> Done:
        """Read a part, work on it, commit it.

        Raises:
            DataError: a file can't be read; or a row is bad and that is to fail the job.
        """
        began = time.monotonic()
        with self._reading:
            rows = self._reader.read(part)
        worked = self._worked(part, rows)
        reason = _reason(rows, worked) if worked.bad else None
        if reason is not None and self._bad_rows == "fail":
            raise DataError(f"a bad row: {reason}", hint='output.bad_rows = "quarantine" writes such rows apart')
        new = fit_new(worked.columns, self._output.agree(worked.columns.schema))
        good = _with_new(rows.select([*ROW_ID.names, *self._carried]), worked.good, new)
        record = self._output.commit(PartRows(part=part, good=good, bad=_bad(rows, worked)))
        del self._underway[part.index]
        return Done(
            record=record,
            tokens=worked.tokens,
            reason=reason,
            seconds=time.monotonic() - began,
            busy_seconds=worked.busy_seconds,
        )

    def _worked(self, part: Part, rows: pa.Table) -> Worked:
        self._underway[part.index] = 0

        def tell(count: float) -> None:
            self._underway[part.index] += count

        return self._task.work(rows, tell=tell)


def _with_new(rows: pa.Table, good: np.ndarray, new: pa.Table) -> pa.Table:
    for name in new.schema.names:
        if name in rows.schema.names:
            raise DataError(
                f"the task's new column {name!r} has the name of a column of the input",
                hint="name the columns to carry in data.columns, without it",
            )
    kept = rows if len(good) == rows.num_rows else _picked(rows, good)
    for field, column in zip(new.schema, new.columns, strict=True):
        kept = kept.append_column(field, column)
    return kept


def _picked(rows: pa.Table, numbers: np.ndarray) -> pa.Table:
    """The rows of these ascending numbers, by slices: Arrow can't take single rows of all types."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    pieces = [rows.slice(int(run[0]), len(run)) for run in runs if len(run)]
    return pa.concat_tables(pieces).combine_chunks() if pieces else rows.slice(0, 0)


def _bad(rows: pa.Table, worked: Worked) -> pa.Table:
    numbers = pa.array([number for number, _ in worked.bad], pa.int64())
    reasons = pa.array([reason for _, reason in worked.bad], pa.string())
    return rows.select(ROW_ID.names).take(numbers).append_column("reason", reasons).cast(QUARANTINE)


def _reason(rows: pa.Table, worked: Worked) -> str:
    number, reason = worked.bad[0]
    file, group, row = (rows.column(name)[number].as_py() for name in ROW_ID.names)
    return f"{file}, row group {group}, row {row}: {reason}"
