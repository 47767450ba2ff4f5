"""Parquet folders and jobs on them, small and in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.fakes.plans import a_plan
from tests.infer.plans import task_plan
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.custom import CustomTask
from tpuctl.infer.folder import Folder, finish, take_folder
from tpuctl.infer.output import Record
from tpuctl.infer.parts import cut
from tpuctl.infer.replica import Replica
from tpuctl.infer.rows import Rows, open_rows
from tpuctl.infer.task import Task
from tpuctl.infer.tasks import needed_columns
from tpuctl.infer.work import Work, work_of
from tpuctl.plan.infer_schema import InferDataPlan, OutputPlan
from tpuctl.plan.schema import InferencePlan

Function = Callable[[dict[str, np.ndarray], np.ndarray], dict[str, Any]]


def write(folder: Path, files: dict[str, pa.Table], *, group_rows: int = 5) -> Path:
    for name, table in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=group_rows)
    return folder


def numbers(folder: Path, *counts: int, group_rows: int = 5) -> Path:
    """Files of so many rows, with columns ``id`` counted over all files and ``x``."""
    files, first = {}, 0
    for number, count in enumerate(counts):
        ids = range(first, first + count)
        files[f"f{number}.parquet"] = pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(ids, pa.float32())})
        first += count
    return write(folder, files, group_rows=group_rows)


def doubled(batch: dict[str, np.ndarray], mask: np.ndarray) -> dict[str, Any]:
    return {"y": batch["x"] * 2}


def job(uri: Path | str, output: Path | str, **changes: Any) -> InferencePlan:
    """An inference job; ``changes`` are fields of its data, task and output parts."""

    def changed(part: Any) -> Any:
        mine = {key: value for key, value in changes.items() if hasattr(part, key)}
        return replace(part, **mine)

    sample = a_plan()
    task = task_plan(function="m:f")
    return InferencePlan(
        kind="infer",
        entrypoint="x",
        tpuctl_version="0",
        run=sample.run,
        slice=replace(sample.slice, hosts=1, slices=1),
        job=sample.job,
        model=None,
        data=changed(InferDataPlan(uri=str(uri), columns=(), limit=None)),
        task=changed(task),
        replica=None,
        output=changed(
            OutputPlan(uri=str(output), mode="resume", rows_per_part=8, bad_rows="quarantine", max_quarantine="100%")
        ),
    )


class Job:
    """A job as its driver sees it, part by part."""

    def __init__(self, plan: InferencePlan, function: Function = doubled, *, task: Task | None = None) -> None:
        self.plan = plan
        self.rows: Rows = open_rows(plan.data, needed=needed_columns(plan.task))
        self.work: Work = work_of(plan, self.rows)
        self.folder: Folder = take_folder(plan.output.uri, self.work, mode=plan.output.mode)
        inputs = plan.task.inputs or CustomTask.default_inputs(self.rows.schema)
        task = task or CustomTask(function, inputs=inputs, batch_rows=plan.task.batch_rows)
        self.replica = Replica(self.rows, self.folder.output, task, bad_rows=plan.output.bad_rows)

    def parts(self) -> Iterator[Record]:
        """Do what isn't done."""
        done = self.folder.output.done()
        for part in cut(self.folder.work.rows, part_rows=self.folder.work.part_rows):
            yield self.folder.output.record(part.index) if part.index in done else self.replica.do(part).record

    def run(self) -> dict[str, Any]:
        """To the end."""
        return finish(self.folder, list(self.parts()))


def read(output: Path | str, *, pattern: str = "part-*.parquet") -> pa.Table:
    """All parts in the order of the row id."""
    tables = [pq.read_table(path) for path in sorted(Path(output).glob(pattern))]
    table = pa.concat_tables(tables).combine_chunks()
    order = pc.sort_indices(table.select(ROW_ID.names), [(name, "ascending") for name in ROW_ID.names])
    in_order = order.equals(pa.array(range(table.num_rows), order.type))
    return table if in_order else table.take(order)  # which not all types can


def data_bytes(output: Path | str) -> dict[str, bytes]:
    """Every data file by its name."""
    root = Path(output)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.parquet")}
