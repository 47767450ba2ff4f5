"""From a shape to a cluster that takes jobs, and from a cluster in any state to nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpuctl.cluster import processes
from tpuctl.cluster.environment import Identity, cluster_environment
from tpuctl.cluster.registry import Cluster, HostMark, ProcessMark, Registry, cache_dir
from tpuctl.cluster.shape import HostSpec, NodeSize, SimulatedShape, host_specs
from tpuctl.connection import UnreachableError
from tpuctl.errors import ClusterError

_PREFIX = "tpuctl-"
# Ray's sockets lie in the temporary directory, and the path of a socket is limited to some 100 bytes.
_MAX_TEMP_PATH = 30
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 5


def prepare(shape: SimulatedShape, *, name: str, size: NodeSize, registry: Registry) -> Cluster:
    """Directory, token and the description that the keeper reads; registered before any process exists."""
    root = tempfile.gettempdir()
    cluster = Cluster(
        name=name,
        marker=secrets.token_hex(8),
        created=time.time(),
        shape=shape,
        size=size,
        temp_dir=tempfile.mkdtemp(prefix=_PREFIX, dir=root if len(root) <= _MAX_TEMP_PATH else "/tmp"),
        token_path=str(registry.make_token(name)),
    )
    registry.save(cluster)
    hosts = [dataclasses.asdict(host) for host in host_specs(shape)]
    # Ray opens its own directory to every user of the machine; within ours nobody else gets to it.
    ray_dir = str(Path(cluster.temp_dir) / "ray")
    description = {"temp_dir": ray_dir, "size": dataclasses.asdict(size), "hosts": hosts}
    _description(cluster).write_text(json.dumps(description, indent=2))
    return cluster


def start(cluster: Cluster, registry: Registry, *, timeout_seconds: float) -> Cluster:
    """Start the prepared cluster and return it when it takes jobs; whatever goes wrong, nothing is left of it.

    Raises:
        ClusterError: it broke, or was not up in time; the message holds the end of the keeper's log.
    """
    deadline = time.monotonic() + timeout_seconds
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: clean(cluster, registry))
        with _keeper(cluster) as (keeper, events):
            cluster = dataclasses.replace(cluster, keeper=processes.mark(keeper.pid))
            registry.save(cluster)
            for event in _read(events, cluster, deadline):
                cluster = _noted(cluster, event)
        if not cluster.address:
            raise ClusterError(f"simulated cluster {cluster.name!r} broke while starting: {_log_tail(cluster)}")
        _wait_until_jobs_are_taken(cluster, deadline)
        cluster = _noted(cluster, {"event": "ready"})
        registry.save(cluster)
        undo.pop_all()
    return cluster


def clean(cluster: Cluster, registry: Registry) -> None:
    """End what lives of the cluster, delete its files and forget it."""
    processes.end(cluster)
    if Path(cluster.temp_dir).name.startswith(_PREFIX):
        shutil.rmtree(cluster.temp_dir, ignore_errors=True)
    registry.remove(cluster.name)


@contextlib.contextmanager
def _keeper(cluster: Cluster) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The keeper, detached from us, and the descriptor on which it reports."""
    identity = Identity(
        marker=cluster.marker,
        token_path=cluster.token_path,
        temp_dir=cluster.temp_dir,
        bytecode_dir=cache_dir() / "bytecode",
        programs_dir=cache_dir() / "programs",
    )
    script = Path(__file__).with_name("keeper.py")
    events, report = os.pipe()
    try:
        with _log(cluster).open("wb") as log:
            keeper = subprocess.Popen(
                # -P: this directory must not come before the standard library, whose `inspect` it would hide.
                [sys.executable, "-P", str(script), str(_description(cluster)), str(report)],
                env=cluster_environment(os.environ, identity),
                cwd=cluster.temp_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[report],
                start_new_session=True,
            )
        os.close(report)
        yield keeper, events
    finally:
        os.close(events)
    # It outlives us on purpose; the handle must not complain of that when it is collected.
    keeper.returncode = 0


def _read(events: int, cluster: Cluster, deadline: float) -> Iterator[dict[str, Any]]:
    """What the keeper reports, until it closes its end."""
    rest = b""
    while True:
        ready, _, _ = select.select([events], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise ClusterError(f"simulated cluster {cluster.name!r} did not start in time: {_log_tail(cluster)}")
        chunk = os.read(events, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _noted(cluster: Cluster, event: dict[str, Any]) -> Cluster:
    """The cluster with what the event says, and when it came."""
    seconds = round(time.time() - cluster.created, 3)
    noted = dataclasses.replace(cluster, phases={**cluster.phases, event["event"]: seconds})
    if event["event"] == "host":
        return dataclasses.replace(noted, hosts=(*cluster.hosts, _host(host_specs(cluster.shape), event)))
    if event["event"] == "dashboard":
        return dataclasses.replace(noted, address=event["address"], gcs_address=event["gcs_address"])
    return noted


def _host(specs: tuple[HostSpec, ...], event: dict[str, Any]) -> HostMark:
    spec = specs[event["index"]]
    return HostMark(
        slice_name=spec.slice_name,
        worker_id=spec.worker_id,
        node_id=event["node_id"],
        raylet=_mark_or_gone(event["pid"]),
    )


def _mark_or_gone(pid: int) -> ProcessMark:
    with contextlib.suppress(processes.NoSuchProcess):
        return processes.mark(pid)
    return ProcessMark(pid=pid, started=0.0)


def _wait_until_jobs_are_taken(cluster: Cluster, deadline: float) -> None:
    """Ask the dashboard's job service until it answers.

    Ray hands a job on to the head node's agent, which the keeper has seen up already: a node is registered only
    once its agent listens. So this is the last thing that can be missing.
    """
    with cluster.connect() as connection:
        while True:
            try:
                connection.get_json("/api/version")
            except UnreachableError as error:
                if time.monotonic() > deadline or not processes.is_alive(cluster.keeper):
                    raise ClusterError(f"{error.message}; {_log_tail(cluster)}") from None
                time.sleep(_POLL_SECONDS)
            else:
                return


def _description(cluster: Cluster) -> Path:
    return Path(cluster.temp_dir) / "cluster.json"


def _log(cluster: Cluster) -> Path:
    return Path(cluster.temp_dir) / "keeper.log"


def _log_tail(cluster: Cluster) -> str:
    lines = [line.strip() for line in _log(cluster).read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_LOG_TAIL_LINES:]) or "its log is empty"
