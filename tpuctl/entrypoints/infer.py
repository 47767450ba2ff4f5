"""The infer entrypoint: the driver of a batch inference job. What each host does is in ``infer_host``, or for a
slice whose hosts have a model together in ``infer_lead``.

The driver finds out which rows there are and which parts are done, has the slices reserved, deals the parts that are
missing to the replicas, a host or a slice each, and closes the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray

from tpuctl import __version__
from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.attempt import HeldRun
from tpuctl.entrypoints.corpus import dataset_uris
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.emit import emit, emit_event, tell_note
from tpuctl.entrypoints.fleet import Fleet, FleetOptions
from tpuctl.entrypoints.infer_host import CALLS_AT_ONCE, InferHost
from tpuctl.entrypoints.infer_lead import InferLead
from tpuctl.entrypoints.reservation import reserved
from tpuctl.entrypoints.stopping import stop_watch
from tpuctl.infer.folder import Folder, finish, read_manifest, take_folder
from tpuctl.infer.parts import Part, cut
from tpuctl.infer.rows import Rows, open_parquet, open_rows
from tpuctl.infer.tally import Tally, most_quarantined
from tpuctl.infer.tasks import model_identity, needed_columns
from tpuctl.infer.work import work_of
from tpuctl.plan.schema import InferencePlan, plan_to_json
from tpuctl.runs.events import event
from tpuctl.runs.record import EventsWriter
from tpuctl.storage import join

TELL_SECONDS = 2.0
FIRST_ROWS = 5
_CELL = 60


def main(plan: InferencePlan) -> int:
    """Run one attempt of a batch inference job; the job's exit code.

    Raises:
        TpuctlError: The job failed for a reason we can name.
    """
    identity = begin(plan)
    with HeldRun(plan, identity, version=__version__) as run, bounded(plan, identity):
        run.ended("succeeded" if _run(plan, identity.submission_id) else "stopped")
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Assignment:
    """What is left to do, and the tally that counts it."""

    plan: InferencePlan
    rows: Rows
    folder: Folder
    parts: dict[int, Part]
    tally: Tally


def _run(plan: InferencePlan, job: str) -> bool:
    """Do what is missing of the work; whether all of it is there now."""
    began = time.monotonic()
    rows = _rows(plan)
    model = None
    if plan.model is not None:
        model = model_identity(model_folder(plan.model.uri, tell=tell_note), plan.task)
    folder = take_folder(plan.output.uri, work_of(plan, rows, model=model), mode=plan.output.mode)
    if folder.finished:
        _tell_end(folder, seconds=time.monotonic() - began)
        return True
    left = _assignment(plan, rows, folder)
    total = f"{folder.work.rows:,} rows in {len(rows.files):,} file{'s' * (len(rows.files) != 1)}"
    emit("phase", phase="data", detail=f"{total}; {len(left.parts):,} parts to do, {len(left.tally.records):,} done")
    if left.parts and not _do(left, job):
        emit("stopped", rows=left.tally.rows, total=left.tally.total, reason="requested")
        return False
    finish(folder, left.tally.records.values())
    _tell_end(folder, seconds=time.monotonic() - began, tally=left.tally)
    return True


def _rows(plan: InferencePlan) -> Rows:
    directory = join(plan.run.directory, "dataset")
    uri = dataset_uris(plan.data.uri, eval_uri=None, directory=directory).train_uri
    return open_rows(replace(plan.data, uri=uri), needed=needed_columns(plan.task))


def _assignment(plan: InferencePlan, rows: Rows, folder: Folder) -> _Assignment:
    work = folder.work
    most_bad = most_quarantined(plan.output.max_quarantine, rows=work.rows)
    tally = Tally(total=work.rows, most_bad=most_bad, started=time.monotonic())
    parts = {part.index: part for part in cut(work.rows, part_rows=work.part_rows)}
    for index in sorted(folder.output.done() & parts.keys()):
        tally.found(folder.output.record(index))
        del parts[index]
    return _Assignment(plan=plan, rows=rows, folder=folder, parts=parts, tally=tally)


def _do(left: _Assignment, job: str) -> bool:
    """Have the replicas do the parts; False if they were stopped before the end."""
    plan = left.plan
    given = (plan_to_json(plan), ray.put(left.rows), left.folder.output)
    with stop_watch(job) as asked, reserved(plan.slice, timeout_seconds=plan.job.start_timeout_seconds) as slices:
        emit("phase", phase="reserved", seconds=time.monotonic() - left.tally.started)
        threads = {"max_concurrency": CALLS_AT_ONCE, "max_restarts": 0}

        def start(number: int) -> Any:
            if not plan.per_slice:
                return ray.remote(InferHost).options(**threads, **slices.options(number)).remote(*given, number)
            led = slices.of_slice(number)
            return ray.remote(InferLead).options(**threads, **led.beside(0)).remote(*given, number, led)

        fleet = Fleet(
            FleetOptions(
                start=start,
                per="slice" if plan.per_slice else "host",
                replicas=plan.replicas,
                max_failures=plan.job.max_failures,
                start_seconds=plan.job.start_timeout_seconds,
            )
        )
        try:
            _follow(fleet, left, stop=asked)
        finally:
            fleet.close()
        return not asked() or left.tally.rows == left.tally.total


def _follow(fleet: Fleet, left: _Assignment, *, stop: Callable[[], bool]) -> None:
    """Count the parts as they are done and tell of them every other second."""
    tally, history = left.tally, EventsWriter(left.plan.run.directory)
    told = 0.0
    for step in fleet.run(left.parts, stop=stop):
        now = time.monotonic()
        if not fleet.at_work and not tally.fresh_rows:
            tally.started = now  # starting is no part of the speed
        if step is not None:
            host, done = step
            if not tally.fresh_rows:
                tally.started = min(tally.started, now - done.seconds)
            tally.done(done, host=host)
            tally.check()
        going = tally.fresh_rows or fleet.underway
        if going and (now - told >= TELL_SECONDS or tally.rows == tally.total):
            told = now
            item = event("rows", **tally.progress(now, underway=fleet.underway))
            emit_event(item)
            history.append([item])


def _tell_end(folder: Folder, *, seconds: float, tally: Tally | None = None) -> None:
    """The ``done`` event: what the manifest says, and the first rows."""
    entry = next(item for item in read_manifest(folder.output.uri) if item["key"] == folder.work.key)
    hosts = len(tally.host_rows) if tally else 0
    working = max(1e-9, time.monotonic() - tally.started) * hosts if tally else 0.0
    emit(
        "done",
        rows=entry["rows"],
        quarantined=entry["quarantined"],
        dropped=entry["dropped"],
        parts=len(entry["parts"]),
        fresh_rows=tally.fresh_rows if tally else 0,
        busy=tally.busy_seconds / working if tally and working else None,
        seconds=seconds,
        output=folder.output.uri,
        first=_first_rows(folder),
    )


def _first_rows(folder: Folder) -> dict[str, Any]:
    """The first rows of the first part, each value cut to a cell of a table."""
    name = join(folder.output.uri, folder.output.part_name(0))
    with open_parquet(name) as file:
        table = next(file.iter_batches(batch_size=FIRST_ROWS), None)
    if table is None:
        return {"columns": [], "rows": []}
    rows = [[_cell(value) for value in row.values()] for row in table.to_pylist()]
    return {"columns": table.schema.names, "rows": rows}


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
