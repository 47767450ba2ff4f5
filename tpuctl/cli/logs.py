"""``tpuctl logs``: what a job printed, and what it goes on to print."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tpuctl.cli import console
from tpuctl.cli.options import ClusterOption, JobArgument, Output, OutputOption
from tpuctl.cli.target import open_jobs
from tpuctl.cli.watch import LogView, watch
from tpuctl.errors import ExitCode


def logs(
    job: JobArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends; exit as it did.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="The last N lines only.", show_default=False)
    ] = None,
    host: Annotated[
        int | None, typer.Option("--host", metavar="K", min=0, help="Lines of that host only.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
    cluster: ClusterOption = None,
) -> None:
    """Print the log of a job."""
    from tpuctl.submit.follow import FollowOptions, read_lines
    from tpuctl.submit.lines import known_secrets

    view = LogView(json=output is Output.json, host=host)
    secrets = known_secrets(os.environ)
    with open_jobs(cluster, job=job) as jobs:
        if follow:
            options = FollowOptions(tail=tail, secrets=secrets, known=False)
            raise typer.Exit(watch(jobs, job, view=view, options=options, cluster=cluster))
        for line in read_lines(jobs, job, tail=tail, host=host, secrets=secrets):
            view.show(line)
        info = jobs.info(job)
    if not info.status.terminal:
        console.say(f"job {job} is {info.status.lower()}; go on with `tpuctl logs {job} -f`")
    raise typer.Exit(ExitCode.DONE)
