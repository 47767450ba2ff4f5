"""The run record: what was asked, which attempts were made, how each ended. Written by the lease's holder only.

``run.json`` holds the plan (secrets masked) and the attempts; ``metrics.jsonl`` one history of steps over all attempts;
``events.jsonl`` everything a job said; both are journals. All of it reads with the cluster gone. Imports no ray.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tpuctl.errors import StorageError
from tpuctl.masking import MASK
from tpuctl.plan.run_source import RUN_FILE
from tpuctl.plan.schema import Plan, plan_to_json
from tpuctl.runs.events import Event
from tpuctl.runs.journal import open_journal, read_journal
from tpuctl.storage import NotFoundError, join, open_storage

RUN_SCHEMA = "tpuctl.run/1"
METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"

AttemptStatus = Literal["running", "succeeded", "stopped", "failed", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try of a run. ``cluster`` is the dashboard's address; times are Unix seconds."""

    number: int
    submission_id: str
    cluster: str
    tpuctl_version: str
    started: float
    ended: float | None = None
    status: AttemptStatus = "running"
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run. ``plan`` is that of the latest attempt, as JSON, with secrets masked."""

    name: str
    directory: str
    plan: dict[str, Any]
    attempts: tuple[Attempt, ...] = ()

    @property
    def latest(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


def begin_attempt(plan: Plan, attempt: Attempt) -> RunRecord:
    """Write down that an attempt has begun. One before it that never said how it ended is marked lost."""
    directory = plan.run.directory
    before = read_record(directory)
    attempts = [] if before is None else [_settle(old, attempt.started) for old in before.attempts]
    attempts = [old for old in attempts if old.number != attempt.number]
    record = RunRecord(name=plan.run.name, directory=directory, plan=masked_plan(plan), attempts=(*attempts, attempt))
    _write(record)
    return record


def end_attempt(directory: str, *, status: AttemptStatus, ended: float, reason: str | None = None) -> RunRecord:
    """Write down how the latest attempt ended."""
    record = read_record(directory)
    if record is None or record.latest is None:
        raise StorageError(f"{directory}: no attempt is on record")
    last = replace(record.latest, status=status, ended=ended, reason=reason)
    record = replace(record, attempts=(*record.attempts[:-1], last))
    _write(record)
    return record


def masked_plan(plan: Plan) -> dict[str, Any]:
    """The plan as JSON with the secrets' values masked: the only form that may be printed or kept."""
    secrets = dict.fromkeys(plan.job.secrets, MASK)
    document: dict[str, Any] = json.loads(
        json.dumps(plan_to_json(replace(plan, job=replace(plan.job, secrets=secrets))))
    )
    return document


def read_record(directory: str) -> RunRecord | None:
    """The record of a run, None if there is none.

    Raises:
        StorageError: it can't be read, or is of another version.
    """
    uri = join(directory, RUN_FILE)
    try:
        data = open_storage(uri).read(uri).data
    except NotFoundError:
        return None
    try:
        document = json.loads(data)
        if document.pop("schema") != RUN_SCHEMA:
            raise ValueError
        attempts = tuple(Attempt(**item) for item in document.pop("attempts"))
        return RunRecord(attempts=attempts, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{uri} is no run record this version can read") from error


class MetricsWriter:
    """The one history of a run's steps. Resuming at a step forgets what an earlier attempt did beyond it."""

    def __init__(self, directory: str, *, resume_step: int | None) -> None:
        """Open the history; ``resume_step`` is the checkpoint's step, None if training starts anew."""
        last_step = -1 if resume_step is None else resume_step
        self._journal = open_journal(directory, METRICS_FILE)
        self._journal.keep_only(lambda line: any(item["step"] <= last_step for item in _parse_lines(line)))
        self._last = {item["event"]: item["step"] for item in read_metrics(directory)}

    def append(self, item: Event) -> None:
        """Add a ``step`` or ``eval`` event; each kind's steps only ever grow.

        A run resumed at its end is evaluated there once more, and that takes the place of the former evaluation.
        """
        name, step = item["event"], item["step"]
        if name == "eval" and step == self._last.get("eval"):
            self._journal.keep_only(lambda line: (name, step) not in _names(line))
        elif step <= self._last.get(name, -1):
            raise ValueError(f"{name} {step} after {name} {self._last[name]}")
        self._last[name] = step
        self._journal.append(_line(item))

    def close(self) -> None:
        """Return once the whole history is kept; raises ``StorageError`` if it can't be."""
        self._journal.close()


class EventsWriter:
    """Everything a run said, attempt after attempt."""

    def __init__(self, directory: str) -> None:
        self._journal = open_journal(directory, EVENTS_FILE)

    def append(self, items: Iterable[Event]) -> None:
        """Add events."""
        data = b"".join(map(_line, items))
        if data:
            self._journal.append(data)

    def close(self) -> None:
        """Return once all events are kept; raises ``StorageError`` if they can't be."""
        self._journal.close()


def read_metrics(directory: str) -> list[Event]:
    """The history of ``step`` and ``eval`` events; empty if there is none."""
    return _parse_lines(read_journal(directory, METRICS_FILE))


def read_events(directory: str) -> list[Event]:
    """All events of all attempts; empty if there are none."""
    return _parse_lines(read_journal(directory, EVENTS_FILE))


def _settle(attempt: Attempt, now: float) -> Attempt:
    if attempt.ended is not None:
        return attempt
    return replace(attempt, status="lost", ended=now, reason="ended without a word: its driver or its cluster died")


def _write(record: RunRecord) -> None:
    uri = join(record.directory, RUN_FILE)
    document = {"schema": RUN_SCHEMA, **asdict(record)}
    open_storage(uri).write(uri, (json.dumps(document, indent=2) + "\n").encode())


def _line(item: Event) -> bytes:
    return (json.dumps(item, separators=(",", ":")) + "\n").encode()


def _names(line: bytes) -> list[tuple[str, int]]:
    return [(item["event"], item["step"]) for item in _parse_lines(line)]


def _parse_lines(data: bytes) -> list[Event]:
    """The whole lines; a crash may have left part of one at the end, or in the middle if another job wrote on."""
    items = []
    for line in data.split(b"\n"):
        try:
            item = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(item, dict) and "event" in item:
            items.append(item)
    return items
