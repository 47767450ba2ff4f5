"""Which cluster a verb means, and the open connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli import console

if TYPE_CHECKING:
    from tpuctl.cluster.registry import Cluster
    from tpuctl.cluster.shape import SimulatedShape
    from tpuctl.connection import Connection
    from tpuctl.plan.schema import Plan
    from tpuctl.submit.jobs import Jobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """A cluster we can talk to. ``simulated``: its slices are processes of this machine."""

    connection: Connection
    simulated: bool


@contextmanager
def reach_for(plan: Plan, *, flag: str | None, recipe_address: str | None) -> Iterator[Reached]:
    """The cluster a plan goes to: the one named, else a simulated one of its shape, which is started if need be.

    Raises:
        ClusterError: it can't be reached or started.
    """
    from tpuctl.cluster.address import choose, open_session, simulated_at
    from tpuctl.cluster.shape import SimulatedShape
    from tpuctl.cluster.simulated import running

    shape = SimulatedShape.of(list(plan.reserves.values()))
    found = running(shape)
    target = choose(flag, recipe=recipe_address, running=found)
    if target.address is None:
        found = _start_simulated(shape)
        address = found.address
    else:
        console.say(f"cluster: {target}")
        address = target.address
    with open_session(address) as connection:
        yield Reached(connection=connection, simulated=simulated_at(address) is not None)


@contextmanager
def open_jobs(flag: str | None, *, job: str | None = None) -> Iterator[Jobs]:
    """The jobs of the cluster that is named, else of the running simulated one; of several, the one that knows ``job``.

    Raises:
        ClusterError: none is named and none runs.
    """
    from tpuctl.cluster.address import choose, open_session
    from tpuctl.submit.ray_jobs import RayJobs

    target = choose(flag, running=_simulated_with(job))
    with open_session(target.required()) as connection:
        yield RayJobs(connection)


def _simulated_with(job: str | None) -> Cluster | None:
    """The newest simulated cluster that is whole and knows the job; without one that does, the newest."""
    from tpuctl.cluster.simulated import status
    from tpuctl.submit.ray_jobs import RayJobs

    whole = [entry.cluster for entry in status() if entry.alive and not entry.problems]
    if job is None or len(whole) < 2:
        return whole[-1] if whole else None
    for cluster in reversed(whole):
        with cluster.connect() as connection:
            if any(info.submission_id == job for info in RayJobs(connection).list()):
                return cluster
    return whole[-1]


def _start_simulated(shape: SimulatedShape) -> Cluster:
    from tpuctl.cluster.simulated import up

    console.say(f"no cluster named: starting a simulated one on this machine, {shape}")
    started = up(shape)
    console.say(f"simulated cluster {started.name} is up; it stays until `tpuctl cluster down --name {started.name}`")
    return started
