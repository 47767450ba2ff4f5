"""Start a plan's job, once, whatever the wire does and however many ask for it at the same time.

The entrypoint is a fixed string: Ray gives it to a shell, so no value of a recipe may ever stand in it. Values travel
in the plan, inside the package.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.connection import ResponseError, UnreachableError
from tpuctl.errors import ClusterError, RunInUseError
from tpuctl.plan.schema import Plan, SlicePlan
from tpuctl.runs.lease import current_holder
from tpuctl.runs.record import read_record
from tpuctl.storage import ForbiddenError, UnreachableStorageError
from tpuctl.submit.decide import DIRECTORY_KEY, FINGERPRINT_KEY, Attach, Situation, Submit, decide, fingerprint
from tpuctl.submit.follow import Clock
from tpuctl.submit.jobs import JobExistsError, JobRequest, Jobs, NotReadyError
from tpuctl.submit.package import Package, job_package, upload

ENTRYPOINT = "python -m tpuctl.entrypoints plan.json"

_NONCE_KEY = "tpuctl_nonce"
_ROUNDS = 5
_PAUSE_SECONDS = 1.0
_PASSING_STATUSES = (502, 503, 504)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The job that does a plan's work. ``attached``: it ran already, and nothing was started."""

    submission_id: str
    attached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """``package`` is the job's where it is made already, with files of the user's own.

    ``ready_seconds``: how long to bear with a cluster that answers but takes no jobs yet, as after its start.

    ``before_start`` is called when a job is about to be started, and not when there is one to attach to; it may raise.
    """

    ready_seconds: float = 60.0
    package: Package | None = None
    notice: Callable[[str], None] = lambda _: None
    before_start: Callable[[], None] = lambda: None
    clock: Clock = field(default_factory=Clock)


def launch(jobs: Jobs, plan: Plan, *, options: LaunchOptions | None = None) -> Launch:
    """Attach to the job that does this work already, or start it.

    Raises:
        RunInUseError: other work holds the run directory.
        PackageTooLargeError: the package would not fit; nothing has been sent.
        ClusterError: the cluster can't be reached, refuses, or took no job in time.
    """
    options = options or LaunchOptions()
    package = options.package or job_package(plan)
    for _ in range(_ROUNDS):
        decision = decide(plan, _look(jobs, plan, options))
        if isinstance(decision, Attach):
            return Launch(submission_id=decision.submission_id, attached=True)
        options.before_start()
        try:
            _start(jobs, plan, _Start(package=package, decision=decision, options=options))
        except JobExistsError:
            # Somebody else was quicker, perhaps with the very same recipe: look again.
            continue
        return Launch(submission_id=decision.submission_id, attached=False)
    raise RunInUseError(f"run {plan.run.name}: others keep submitting jobs of this name")


def runtime_env(plan: Plan, *, package_uri: str, identity: Mapping[str, str]) -> dict[str, Any]:
    """Ray's runtime environment of a job. Ray shows it to whoever may look, so nothing secret is in it."""
    env = {
        "PYTHONUNBUFFERED": "1",
        # One byte that is no UTF-8 in a job's log, and Ray's server can't read the log back at all.
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        **plan.job.env,
        # Read by the job's supervisor, which is started with this environment; whole seconds only.
        "RAY_JOB_STOP_WAIT_TIME_S": str(math.ceil(plan.job.stop_grace_seconds)),
        **identity,
    }
    found: dict[str, Any] = {"working_dir": package_uri, "env_vars": env}
    return {**found, "pip": list(plan.job.pip)} if plan.job.pip else found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    package: Package
    decision: Submit
    options: LaunchOptions


def _look(jobs: Jobs, plan: Plan, options: LaunchOptions) -> Situation:
    directory, record, holder = plan.run.directory, None, None
    try:
        record, holder = read_record(directory), current_holder(directory)
    except (ForbiddenError, UnreachableStorageError) as error:
        # The cluster may have rights that this machine has not. The job takes the lease before anything else.
        options.notice(f"note: {error.message}; the job will look there with the cluster's own rights")
    return Situation(jobs=jobs.list(), record=record, holder=holder, now=time.time())


def _start(jobs: Jobs, plan: Plan, start: _Start) -> None:
    decision, nonce = start.decision, uuid.uuid4().hex
    request = JobRequest(
        submission_id=decision.submission_id,
        entrypoint=ENTRYPOINT,
        runtime_env=runtime_env(plan, package_uri=start.package.uri, identity=_identity(decision, jobs.address)),
        metadata={**_metadata(plan, decision.attempt), _NONCE_KEY: nonce},
    )

    def send() -> None:
        upload(jobs, start.package)
        try:
            jobs.submit(request)
        except JobExistsError:
            # If it is ours after all, only the answer to an earlier try was lost.
            if jobs.info(request.submission_id).metadata.get(_NONCE_KEY) != nonce:
                raise

    _when_ready(send, start.options)


def _identity(decision: Submit, cluster: str) -> dict[str, str]:
    """What a job must know of its own submission, as ``entrypoints.attempt`` reads it. No part of the plan, so that
    the package stays the same for every attempt."""
    found = {
        "TPUCTL_SUBMISSION_ID": decision.submission_id,
        "TPUCTL_ATTEMPT": str(decision.attempt),
        "TPUCTL_CLUSTER": cluster,
    }
    return found if decision.takeover is None else {**found, "TPUCTL_TAKEOVER": decision.takeover}


def _metadata(plan: Plan, attempt: int) -> dict[str, str]:
    return {
        "job_name": plan.run.name,
        "tpuctl_run": plan.run.name,
        DIRECTORY_KEY: plan.run.directory,
        FINGERPRINT_KEY: fingerprint(plan),
        "tpuctl_attempt": str(attempt),
        "tpuctl_version": plan.tpuctl_version,
        "tpuctl_kind": plan.kind,
        "tpuctl_stop_grace_seconds": str(math.ceil(plan.job.stop_grace_seconds)),
        "tpuctl_slice": ", ".join(_words(slices) for slices in plan.reserves.values()),
    }


def _words(slices: SlicePlan) -> str:
    return f"{slices.slices} x {slices.accelerator_type} {slices.topology} ({slices.hosts} hosts each)"


def _when_ready(send: Callable[[], None], options: LaunchOptions) -> None:
    clock, waited_for = options.clock, ""
    until = clock.now() + options.ready_seconds
    while True:
        try:
            return send()
        except (NotReadyError, UnreachableError, ResponseError) as error:
            if isinstance(error, ResponseError) and error.status not in _PASSING_STATUSES:
                raise
            if clock.now() >= until:
                raise _never_ready(error, options.ready_seconds) from error
            if not waited_for:
                waited_for = error.message
                options.notice(f"{error.message} yet; trying again for {options.ready_seconds:.0f} s")
            clock.sleep(_PAUSE_SECONDS)


def _never_ready(error: ClusterError, ready_seconds: float) -> ClusterError:
    if not isinstance(error, NotReadyError):
        return error
    return NotReadyError(
        f"the cluster answers, but its head node has had no job agent to take the job for {ready_seconds:.0f} s",
        hint="two clusters on one machine collide on the agent's port 52365 and end up so; else see "
        "dashboard_agent.log on the head node",
    )
