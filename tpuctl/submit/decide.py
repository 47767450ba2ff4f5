"""What the same recipe again means: attach to the job that runs, resume the run that ended, never two at once.

Pure: what is known of the run directory and of the cluster goes in, the decision comes out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import RunInUseError
from tpuctl.plan.schema import Plan
from tpuctl.runs.lease import Holder, in_use, is_gone
from tpuctl.runs.record import RunRecord, masked_plan
from tpuctl.submit.jobs import JobInfo

DIRECTORY_KEY = "tpuctl_directory"
FINGERPRINT_KEY = "tpuctl_fingerprint"

# What may differ although the work is the same.
_NOT_THE_WORK = ("schema", "tpuctl_version", "budget", "notes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attach:
    """The very same work runs already, as this job."""

    submission_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit:
    """Start this attempt. ``takeover`` names the lease of a holder that is known to be gone."""

    submission_id: str
    attempt: int
    takeover: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is known before submitting. ``jobs`` are all the cluster remembers; ``now`` is Unix seconds."""

    jobs: Sequence[JobInfo]
    record: RunRecord | None
    holder: Holder | None
    now: float
    gone: Callable[[Holder], bool] = is_gone


def decide(plan: Plan, situation: Situation) -> Attach | Submit:
    """Attach, or submit which attempt.

    Raises:
        RunInUseError: the run directory belongs to other work that runs, or may run, just now.
    """
    running = [job for job in _jobs_of(plan, situation.jobs) if not job.status.terminal]
    if running:
        return _join(plan, running[0])
    holder = situation.holder
    if holder is not None and not _has_ended(holder, plan, situation):
        raise in_use(plan.run.directory, holder)
    attempt = 1 + max(_numbers(plan, situation), default=0)
    return Submit(
        submission_id=submission_id(plan.run.name, attempt),
        attempt=attempt,
        takeover=None if holder is None else holder.token,
    )


def submission_id(name: str, attempt: int) -> str:
    """The id of an attempt: the same for whoever asks, so that two who ask at once can't both have it."""
    return f"{name}-{attempt}"


def fingerprint(plan: Plan) -> str:
    """A digest of the work a plan asks for; secrets and what follows from the rest are left out."""
    document: dict[str, Any] = {key: value for key, value in masked_plan(plan).items() if key not in _NOT_THE_WORK}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _join(plan: Plan, job: JobInfo) -> Attach:
    if job.metadata.get(FINGERPRINT_KEY) == fingerprint(plan):
        return Attach(submission_id=job.submission_id)
    raise RunInUseError(
        f"run directory {plan.run.directory}: job {job.submission_id} is at work there, from another recipe",
        hint=f"wait for it (`tpuctl logs {job.submission_id} -f`), end it (`tpuctl stop {job.submission_id}`), "
        "or give this run another name and directory",
    )


def _has_ended(holder: Holder, plan: Plan, situation: Situation) -> bool:
    """Whether a lease's holder is gone: run out, ended by the cluster's own word, or a dead process of this machine."""
    if situation.now >= holder.expires or situation.gone(holder):
        return True
    return any(job.submission_id == holder.job and job.status.terminal for job in _jobs_of(plan, situation.jobs))


def _jobs_of(plan: Plan, jobs: Iterable[JobInfo]) -> list[JobInfo]:
    return [job for job in jobs if job.metadata.get(DIRECTORY_KEY) == plan.run.directory]


def _numbers(plan: Plan, situation: Situation) -> Iterable[int]:
    """Attempt numbers that are spent, be it in the record or by a namesake on the cluster."""
    if situation.record is not None:
        yield from (attempt.number for attempt in situation.record.attempts)
    pattern = re.compile(re.escape(plan.run.name) + r"-(\d+)")
    for job in situation.jobs:
        if match := pattern.fullmatch(job.submission_id):
            yield int(match[1])
