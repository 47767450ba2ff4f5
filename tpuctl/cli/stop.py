"""``tpuctl stop``: end a job, gently first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import console
from tpuctl.cli.options import ClusterOption, JobArgument, Output, OutputOption, QuietOption
from tpuctl.cli.target import open_jobs
from tpuctl.errors import ClusterError

if TYPE_CHECKING:
    from tpuctl.submit.jobs import JobInfo, Jobs

_POLL_SECONDS = 0.5
# Beyond the job's own grace: for the kill that follows it, and for the cluster to notice.
_MARGIN_SECONDS = 60.0


def stop(
    job: JobArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Stop a job: SIGTERM, so that it can save its state, and SIGKILL after its grace time."""
    with open_jobs(cluster, job=job) as jobs:
        asked = jobs.stop(job)
        info = jobs.info(job)
        if asked and wait:
            info = _wait(jobs, info, quiet=quiet)
    if quiet:
        console.out(info.submission_id)
    elif output is Output.json:
        document = {"schema": "tpuctl.stop/1", "id": info.submission_id, "status": str(info.status), "asked": asked}
        console.print_json(document)
    else:
        console.out(_words(info, asked=asked))


def _wait(jobs: Jobs, info: JobInfo, *, quiet: bool) -> JobInfo:
    grace = float(info.metadata.get("tpuctl_stop_grace_seconds", 0))
    until = time.monotonic() + grace + _MARGIN_SECONDS
    if not (info.status.terminal or quiet):
        console.say(f"stopping job {info.submission_id}; it has {grace:.0f} s to save its state")
    while not info.status.terminal:
        if time.monotonic() >= until:
            raise ClusterError(
                f"job {info.submission_id} was told to stop {grace + _MARGIN_SECONDS:.0f} s ago and is still "
                f"{info.status.lower()}",
                hint="its head node may be gone; see `tpuctl cluster status`",
            )
        time.sleep(_POLL_SECONDS)
        info = jobs.info(info.submission_id)
    return info


def _words(info: JobInfo, *, asked: bool) -> str:
    status = info.status.lower()
    if not asked:
        return f"job {info.submission_id} was not running: {status}"
    return f"job {info.submission_id} {status if info.status.terminal else 'is told to stop'}"
