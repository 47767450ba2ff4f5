"""What the driver of every kind of job does first: join the cluster, know who it is, be there to be stopped."""

from __future__ import annotations

import os
import time

import ray

from tpuctl.entrypoints.attempt import Identity
from tpuctl.entrypoints.deadline import Deadline
from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.stopping import forward_sigterm
from tpuctl.plan.schema import Plan


def begin(plan: Plan) -> Identity:
    """Set the job's environment and join the cluster; who this job is."""
    started = time.monotonic()
    os.environ.update(plan.job.env | plan.job.secrets)
    ray.init(log_to_driver=True)
    emit("phase", phase="driver", seconds=time.monotonic() - started)
    return Identity.from_environ(os.environ)


def bounded(plan: Plan, identity: Identity) -> Deadline:
    """For the job's work to stand in: a stop request reaches the hosts, and so does the job's time limit."""
    forward_sigterm(identity.submission_id)
    return Deadline(plan.job, identity.submission_id)
