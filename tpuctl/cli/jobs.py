"""``tpuctl jobs``: the jobs a cluster remembers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import ClusterOption, JobArgument, Output, OutputOption, QuietOption
from tpuctl.cli.progress import seconds
from tpuctl.cli.target import open_jobs

if TYPE_CHECKING:
    from tpuctl.submit.jobs import JobInfo

jobs = typer.Typer(no_args_is_help=True, help="List jobs, or show one.")

_COLUMNS = ("ID", "STATUS", "KIND", "SLICE", "STARTED", "TOOK")


@jobs.command()
def ls(output: OutputOption = Output.text, quiet: QuietOption = False, cluster: ClusterOption = None) -> None:
    """List the jobs of the cluster, newest first."""
    with open_jobs(cluster) as opened:
        found = opened.list()
    if quiet:
        for info in found:
            console.out(info.submission_id)
    elif output is Output.json:
        console.print_json({"schema": "tpuctl.jobs/1", "jobs": [_document(info) for info in found]})
    else:
        console.table(_COLUMNS, [_row(info) for info in found])


@jobs.command()
def show(job: JobArgument, output: OutputOption = Output.text, cluster: ClusterOption = None) -> None:
    """Show one job: its status, and why it failed if it did."""
    with open_jobs(cluster, job=job) as opened:
        info = opened.info(job)
    document = _document(info)
    if output is Output.json:
        console.print_json({"schema": "tpuctl.job/1", **document})
        return
    for key, value in document.items():
        if value is not None:
            console.out(f"{key.replace('_', ' ')}: {_text(key, value)}")


def _row(info: JobInfo) -> tuple[object, ...]:
    where = info.metadata
    began = "-" if info.started is None else _clock(info.started)
    return (
        info.submission_id,
        info.status,
        where.get("tpuctl_kind", "-"),
        where.get("tpuctl_slice", "-"),
        began,
        _took(info),
    )


def _document(info: JobInfo) -> dict[str, Any]:
    from tpuctl.masking import Masker
    from tpuctl.submit.lines import known_secrets
    from tpuctl.submit.outcome import judge

    mask = Masker(known_secrets(os.environ))
    reason = judge(info).reason if info.status.terminal else None
    where = info.metadata
    return {
        "id": info.submission_id,
        "status": str(info.status),
        "reason": None if reason is None else mask(reason),
        "kind": where.get("tpuctl_kind"),
        "slice": where.get("tpuctl_slice"),
        "run": where.get("tpuctl_run"),
        "directory": where.get("tpuctl_directory"),
        "attempt": where.get("tpuctl_attempt"),
        "tpuctl_version": where.get("tpuctl_version"),
        "entrypoint": mask(info.entrypoint),
        "started": info.started,
        "ended": info.ended,
        "driver_exit_code": info.driver_exit_code,
    }


def _text(key: str, value: object) -> object:
    return _clock(value) if key in ("started", "ended") and isinstance(value, float) else value


def _took(info: JobInfo) -> str:
    if info.started is None:
        return "-"
    return seconds((info.ended or time.time()) - info.started)


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
