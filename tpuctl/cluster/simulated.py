"""Simulated slices: real Ray nodes on this machine that carry the TPU labels and resources of a topology.

``up`` starts a cluster that outlives the command, ``down`` ends it and leaves nothing, ``running`` finds it again.
The first host of the first slice sits on the head node, as the fewest processes start the fastest. Imports no ray:
the nodes are the work of ``keeper``, a process of its own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tpuctl.cluster import launch, processes
from tpuctl.cluster.registry import Cluster, Registry
from tpuctl.cluster.shape import NodeSize, SimulatedShape
from tpuctl.errors import CapacityError, ClusterError

START_TIMEOUT_SECONDS = 120.0
MAX_HOSTS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterStatus:
    """A registered cluster as it is now. ``problems`` is empty when all of it is alive."""

    cluster: Cluster
    alive: bool
    problems: tuple[str, ...]


def up(
    shape: SimulatedShape,
    *,
    name: str | None = None,
    size: NodeSize | None = None,
    registry: Registry | None = None,
    timeout_seconds: float = START_TIMEOUT_SECONDS,
) -> Cluster:
    """A cluster that has ``shape`` and takes jobs: the running one of that name if it fits, else a new one.

    Raises:
        CapacityError: more hosts than this machine could bear.
        ClusterError: one of that name runs with another shape, or it did not start in time.
    """
    registry = registry or Registry.at_home()
    name = name or shape.name
    if shape.total_hosts > MAX_HOSTS:
        raise CapacityError(
            f"{shape} would be {shape.total_hosts} Ray nodes on this machine; at most {MAX_HOSTS} are simulated",
            hint="choose a smaller topology, or name a real cluster with --cluster",
        )
    with registry.lock(name):
        found = registry.load(name)
        if found is not None and processes.is_alive(found.keeper) and found.address:
            return _reuse(found, shape)
        if found is not None:
            launch.clean(found, registry)
        prepared = launch.prepare(shape, name=name, size=size or NodeSize(), registry=registry)
        return launch.start(prepared, registry, timeout_seconds=timeout_seconds)


def down(name: str, *, registry: Registry | None = None) -> bool:
    """End the cluster, whatever runs on it and whatever state it is in; whether there was one."""
    registry = registry or Registry.at_home()
    with registry.lock(name):
        found = registry.load(name)
        if found is None:
            return False
        launch.clean(found, registry)
        return True


def status(*, registry: Registry | None = None) -> list[ClusterStatus]:
    """Every registered cluster, oldest first."""
    registry = registry or Registry.at_home()
    found = [cluster for name in registry.names() if (cluster := registry.load(name)) is not None]
    return [_status(cluster) for cluster in sorted(found, key=lambda cluster: cluster.created)]


def running(shape: SimulatedShape | None = None, *, registry: Registry | None = None) -> Cluster | None:
    """The newest cluster that is whole and has ``shape``; without one, the newest that is whole."""
    whole = [entry.cluster for entry in status(registry=registry) if entry.alive and not entry.problems]
    fitting = [cluster for cluster in whole if shape is None or cluster.shape.covers(shape)]
    return fitting[-1] if fitting else None


def _status(cluster: Cluster) -> ClusterStatus:
    alive = bool(cluster.address) and processes.is_alive(cluster.keeper)
    if not alive:
        problem = "it never came up" if not cluster.address else "its processes are gone"
        return ClusterStatus(cluster=cluster, alive=False, problems=(problem,))
    lost = [host for host in cluster.hosts if not processes.is_alive(host.raylet)]
    problems = tuple(f"slice {host.slice_name} has lost host {host.worker_id}" for host in lost)
    return ClusterStatus(cluster=cluster, alive=True, problems=problems)


def _reuse(found: Cluster, shape: SimulatedShape) -> Cluster:
    if not found.shape.covers(shape):
        raise ClusterError(
            f"simulated cluster {found.name!r} is up, but with {found.shape} instead of {shape}",
            hint=f"end it with `tpuctl cluster down --name {found.name}`, or use another --name",
        )
    problems = _status(found).problems
    if problems:
        raise ClusterError(
            f"simulated cluster {found.name!r} is not whole: {'; '.join(problems)}",
            hint=f"end it with `tpuctl cluster down --name {found.name}` and start again",
        )
    return dataclasses.replace(found, reused=True)
