"""What every launching verb does once its plan is made: find the cluster and the slice, start the job, follow it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli import console
from tpuctl.cli.progress import infer_summary, summary, view_for
from tpuctl.cli.target import Reached, reach_for
from tpuctl.cli.watch import ProgressView, watch
from tpuctl.errors import CapacityError, ExitCode
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan

POLL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Launching:
    """One launch: the plan, where it should go, and how it is watched.

    ``output`` is ``text``, ``json`` or ``ids``. ``again`` is the command line that resumes this run, ``further`` the
    one that trains on from its end, where there is such a thing.
    """

    plan: Plan
    flag: str | None
    recipe_address: str | None
    wait_seconds: float
    detach: bool
    output: str
    again: str
    further: str | None


def launch_and_follow(launching: Launching) -> ExitCode:
    """Launch the plan's job, or attach to the one that does the same work, and see it to its end.

    Raises:
        CapacityError: no intact idle slice within the time to wait.
        ClusterError: the cluster can't be reached, or refuses.
        RunInUseError: other work holds the run directory.
    """
    from tpuctl.plan.places import check_shared_storage
    from tpuctl.submit.follow import FollowOptions
    from tpuctl.submit.launch import LaunchOptions, launch
    from tpuctl.submit.package import job_package
    from tpuctl.submit.ray_jobs import RayJobs
    from tpuctl.submit.working_directory import working_files

    plan = launching.plan
    for note in plan.notes:
        console.say(f"note: {note}")
    # Before a cluster is looked for, let alone started: files that don't fit won't fit there either.
    package = job_package(plan, working_files=working_files(plan))
    with reach_for(plan, flag=launching.flag, recipe_address=launching.recipe_address) as reached:
        check_shared_storage(plan, simulated=reached.simulated)
        jobs = RayJobs(reached.connection)
        starting = LaunchOptions(
            package=package,
            notice=console.say,
            before_start=lambda: wait_for_slice(reached, plan, seconds=launching.wait_seconds),
        )
        started = launch(jobs, plan, options=starting)
        _say_started(started.submission_id, attached=started.attached, launching=launching)
        if launching.detach:
            return ExitCode.DONE
        view = ProgressView(view_for(launching.output))
        secrets = tuple(plan.job.secrets.values())
        options = FollowOptions(secrets=secrets)
        code = watch(jobs, started.submission_id, view=view, options=options, cluster=launching.flag)
    _say_ending(code, view.last, launching)
    return code


def wait_for_slice(reached: Reached, plan: Plan, *, seconds: float) -> None:
    """Return once the cluster has all of the plan's slices intact and idle; say why not whenever the reason changes.

    Raises:
        CapacityError: not within ``seconds``; the message lists every candidate slice and why not.
    """
    from tpuctl.cluster.capacity import find
    from tpuctl.cluster.inspect import slices

    until, said = time.monotonic() + seconds, ""
    while True:
        try:
            find(slices(reached.connection), plan.reserves)
            return
        except CapacityError as error:
            if time.monotonic() >= until:
                raise
            if error.message != said:
                said = error.message
                console.say(f"waiting for a slice: {said}")
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))


def _say_started(submission_id: str, *, attached: bool, launching: Launching) -> None:
    if launching.detach and launching.output == "json":
        console.print_json({"schema": "tpuctl.launch/1", "submission_id": submission_id, "attached": attached})
    elif launching.detach or launching.output == "ids":
        console.out(submission_id)
    if attached:
        console.say(f"attached to job {submission_id}, which is at this work already")
    else:
        console.say(f"submitted job {submission_id}; run directory {launching.plan.run.directory}")


def _say_ending(code: ExitCode, last: dict[str, Event], launching: Launching) -> None:
    """The closing words: what came out, and the command line to go on with."""
    if code is ExitCode.DONE and "done" in last:
        if "fresh_rows" in last["done"]:
            _show_rows(last["done"], launching)
            return
        for line in summary(last["done"], last.get("baselines")):
            console.say(line)
        if launching.further:
            console.say(f"go on          {launching.further}")
        return
    if hint := last.get("failed", {}).get("hint"):
        console.say(f"  hint: {hint}")
    if code is not ExitCode.DETACHED and {"checkpoint", "resume", "rows"} & last.keys():
        console.say(f"resume         {launching.again}")


def _show_rows(done: Event, launching: Launching) -> None:
    """The end of batch inference: the first rows as a table, and what there is of them."""
    if launching.output == "text" and done["first"]["rows"]:
        console.table(done["first"]["columns"], done["first"]["rows"])
    for line in infer_summary(done):
        console.say(line)
