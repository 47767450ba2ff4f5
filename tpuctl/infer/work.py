"""What work an output folder holds: which input, which task. Two jobs may share parts only if these are equal."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from tpuctl.infer.parts import kept_rows, part_rows
from tpuctl.infer.rows import Rows
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.plan.schema import InferencePlan

WORK_SCHEMA = "tpuctl.work/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of one job. ``rows`` are all that are worked on, ``part_rows`` those of every part but the last.

    ``task`` is the plan's task as JSON. Not part of the identity is how finely it is cut: a job that goes on takes
    over the cut it finds.
    """

    uri: str
    fingerprint: str
    columns: tuple[str, ...]
    rows: int
    dropped: int
    task: dict[str, Any]
    part_rows: int

    @property
    def key(self) -> str:
        """A name for the work, the same for equal work wherever input and output lie."""
        facts = [self.fingerprint, self.columns, self.rows, self.dropped, self.task]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]

    def difference(self, other: Work) -> str:
        """In what the other work differs, in words."""
        if (self.fingerprint, self.rows + self.dropped) != (other.fingerprint, other.rows + other.dropped):
            if self.uri != other.uri:
                return f"its input is {other.uri}, not {self.uri}"
            return f"the input {self.uri} has changed, or another part of it was taken"
        if self.columns != other.columns:
            return "it carries other columns"
        changed = [key for key in {**self.task, **other.task} if self.task.get(key) != other.task.get(key)]
        return f"its task differs in {', '.join(changed)}"


def work_of(plan: InferencePlan, rows: Rows, *, model: str | None = None) -> Work:
    """The work a plan asks for; ``model`` is what identifies its model.

    Raises:
        DataError: the rows don't fill batches and the plan says to raise.
    """
    task, kept = plan.task, kept_rows(rows.num_rows, batch_rows=plan.task.batch_rows, ragged=plan.task.ragged)
    return Work(
        uri=rows.uri,
        fingerprint=rows.fingerprint,
        columns=rows.carried,
        rows=kept,
        dropped=rows.num_rows - kept,
        task={**_task_facts(task), "model": model},
        part_rows=part_rows(rows, most=plan.output.rows_per_part, batch_rows=task.batch_rows, replicas=plan.replicas),
    )


def _task_facts(task: TaskPlan) -> dict[str, Any]:
    """The task as JSON, but for what changes no output: where its module lay, and how many tokens are drafted."""
    facts: dict[str, Any] = json.loads(json.dumps(asdict(task)))
    del facts["directory"], facts["speculate"]
    for name in ("weights", "kv_dtype"):
        if facts[name] is None:
            # As in the folders of versions that did not know it.
            del facts[name]
    return facts


def work_to_json(work: Work) -> bytes:
    """The work as a JSON document."""
    return (json.dumps({"schema": WORK_SCHEMA, **asdict(work)}, indent=2) + "\n").encode()


def work_from_json(data: bytes) -> Work:
    """The work that a document holds.

    Raises:
        ValueError: it is none of this version.
    """
    document = json.loads(data)
    if document.pop("schema", None) != WORK_SCHEMA:
        raise ValueError(f"expected {WORK_SCHEMA}")
    return Work(**{**document, "columns": tuple(document["columns"])})
