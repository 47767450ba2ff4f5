"""Which processes are a simulated cluster's, and how they are ended: those and no others.

A process is the cluster's if it is the keeper or descends from it, belongs to the keeper's session, or carries the
cluster's marker in its environment. The last finds what has outlived all the others, such as a job's driver in a
session of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import psutil

from tpuctl.cluster.registry import Cluster, ProcessMark
from tpuctl.errors import ClusterError

MARKER_VARIABLE = "TPUCTL_SIMULATED_ID"
GRACE_SECONDS = 3.0

NoSuchProcess = psutil.NoSuchProcess

_ROUNDS = 3
_RAYS_OWN = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::JobSupervisor")
# Start times come from clock ticks since boot; the same process reads the same to within a tick.
_CLOCK_SLACK_SECONDS = 0.05


def mark(pid: int) -> ProcessMark:
    """The mark by which a process is known again."""
    return ProcessMark(pid=pid, started=psutil.Process(pid).create_time())


def is_alive(process: ProcessMark | None) -> bool:
    """Whether the very same process still runs."""
    return process is not None and _find(process) is not None


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    """Every live process of the cluster, except the one that asks."""
    own = {os.getpid()}
    return [process for process in _candidates(cluster) if process.pid not in own and _runs(process)]


def end(cluster: Cluster, *, grace_seconds: float = GRACE_SECONDS) -> int:
    """End every process of the cluster and return how many there were.

    SIGTERM first; what is left after the grace gets SIGKILL, and so does whatever was born meanwhile.

    Raises:
        ClusterError: a process that even SIGKILL doesn't end.
    """
    first = processes_of(cluster)
    polite = [process for process in first if not _is_rays_own(process)]
    _signal_all(first, psutil.Process.terminate)
    psutil.wait_procs(polite, timeout=grace_seconds)
    for _ in range(_ROUNDS):
        left = processes_of(cluster)
        if not left:
            return len(first)
        _signal_all(left, psutil.Process.kill)
        psutil.wait_procs(left, timeout=grace_seconds)
    pids = ", ".join(str(process.pid) for process in processes_of(cluster))
    if pids:
        raise ClusterError(f"cluster {cluster.name!r}: could not end the processes {pids}")
    return len(first)


def _candidates(cluster: Cluster) -> Iterator[psutil.Process]:
    keeper = None if cluster.keeper is None else _find(cluster.keeper)
    family = set() if keeper is None else {keeper, *_descendants(keeper)}
    for process in psutil.process_iter():
        if process in family or _in_session(process, cluster.keeper) or _carries(process, cluster.marker):
            yield process


def _find(process: ProcessMark) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process.pid)
        if abs(found.create_time() - process.started) < _CLOCK_SLACK_SECONDS and _runs(found):
            return found
    return None


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_rays_own(process: psutil.Process) -> bool:
    """Some of Ray's helpers sit out SIGTERM when their raylet goes with them. They have nothing to lose."""
    with contextlib.suppress(psutil.Error):
        return process.name() in _RAYS_OWN
    return True


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []


def _in_session(process: psutil.Process, keeper: ProcessMark | None) -> bool:
    """Whether the process is in the session that the keeper opened.

    While one member lives, the system gives the session's number to no new process; but once all are gone it may,
    and then the session's leader is younger than our keeper was.
    """
    if keeper is None:
        return False
    with contextlib.suppress(psutil.Error, OSError):
        if os.getsid(process.pid) != keeper.pid or process.create_time() < keeper.started - _CLOCK_SLACK_SECONDS:
            return False
        return not psutil.pid_exists(keeper.pid) or _find(keeper) is not None
    return False


def _carries(process: psutil.Process, marker: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return bool(process.environ().get(MARKER_VARIABLE) == marker)
    return False


def _signal_all(processes: list[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            send(process)
