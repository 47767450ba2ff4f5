"""The custom entrypoint: the driver of a job of the user's own. What each host does is in ``custom_host``."""

from __future__ import annotations

from tpuctl import __version__
from tpuctl.entrypoints.attempt import HeldRun
from tpuctl.entrypoints.custom_host import custom_host
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.trainer import HostWork, run_on_hosts
from tpuctl.plan.schema import CustomPlan, plan_to_json


def main(plan: CustomPlan) -> int:
    """Run the command or function on every host of the plan's slices; the job's exit code.

    Raises:
        TpuctlError: It failed on a host, or the slices could not be had.
    """
    identity = begin(plan)
    config = {"plan": plan_to_json(plan), "job": identity.submission_id}
    # A command is a process of its own, and that is the one to hold the chips.
    work = HostWork(run=custom_host, config=config, joins=plan.work.function is not None)
    with HeldRun(plan, identity, version=__version__) as run:
        with bounded(plan, identity):
            stopped = run_on_hosts(plan, work, attempt=identity.attempt)
        run.ended("stopped" if stopped else "succeeded")
    return 0
