"""Which cluster a verb talks to, and the open connection to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli import console
from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.cluster.registry import Cluster
    from tpuctl.connection import Connection
    from tpuctl.plan.schema import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """A cluster we can talk to. ``simulated``: its slices are processes of this machine."""

    connection: Connection
    simulated: bool


@contextmanager
def reach_for(plan: Plan, *, flag: str | None, recipe_address: str | None) -> Iterator[Reached]:
    """The cluster a plan goes to: the one named, else the simulated one of its shape, which is started if need be.

    Raises:
        ClusterError: it can't be reached or started.
    """
    from tpuctl.cluster.target import choose
    from tpuctl.connection import connect

    chosen = choose(flag, recipe_address, os.environ)
    if chosen is not None:
        with connect(chosen.address, os.environ) as connection:
            yield Reached(connection=connection, simulated=False)
        return
    with _simulated_for(plan).connect() as connection:
        yield Reached(connection=connection, simulated=True)


@contextmanager
def reach(flag: str | None) -> Iterator[Connection]:
    """The cluster that verbs about existing jobs talk to: the one named, else the running simulated one.

    Raises:
        UsageError: none is named and none runs.
        ClusterError: it can't be reached.
    """
    from tpuctl.cluster.simulated import running
    from tpuctl.cluster.target import choose
    from tpuctl.connection import connect

    chosen = choose(flag, None, os.environ)
    if chosen is not None:
        with connect(chosen.address, os.environ) as connection:
            yield connection
        return
    cluster = running()
    if cluster is None:
        raise UsageError(
            "no cluster is named and no simulated one runs", hint="give --cluster URL or set TPUCTL_CLUSTER"
        )
    with cluster.connect() as connection:
        yield connection


def _simulated_for(plan: Plan) -> Cluster:
    from tpuctl.cluster.shape import SimulatedShape
    from tpuctl.cluster.simulated import running, up

    shape = SimulatedShape.from_slice(plan.slice)
    found = running(shape)
    if found is not None:
        console.say(f"no cluster named: using the simulated cluster {found.name!r} on this machine ({found.address})")
        return found
    console.say(f"no cluster named: starting a simulated one on this machine: {shape}")
    started = up(shape)
    console.say(
        f"simulated cluster {started.name!r} is up ({started.address}); it stays: tpuctl cluster down --name {started.name}"
    )
    return started
