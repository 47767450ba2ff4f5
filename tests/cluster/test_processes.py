"""Real processes, started by the tests themselves; none of them is Ray's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from tests.cluster.test_registry import CLUSTER
from tpuctl.cluster import processes
from tpuctl.cluster.registry import Cluster, ProcessMark

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts Python code in a process that says a line when it is ready; kills what is left."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *, marker: str = "", session: bool = False) -> subprocess.Popen[str]:
        environ = {**os.environ, processes.MARKER_VARIABLE: marker}
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=session,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


WAIT = "import signal; print('up'); signal.pause()"
# A child that leaves session and parent behind and keeps the marker, as a job's driver does.
RUNAWAY = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
    " start_new_session=True, stdout=subprocess.DEVNULL); print(child.pid)"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\nwhile True: signal.pause()"


def cluster_kept_by(pid: int, marker: str = "marker-1") -> Cluster:
    return replace(CLUSTER, marker=marker, keeper=processes.mark(pid))


def test_is_alive_tells_a_reused_pid_from_the_same_process(spawn: Spawn) -> None:
    mark = processes.mark(spawn(WAIT).pid)
    assert processes.is_alive(mark)
    assert not processes.is_alive(replace(mark, started=mark.started - 100))
    assert not processes.is_alive(None)


def test_is_alive_of_a_zombie_is_false(spawn: Spawn) -> None:
    process = spawn("print('bye')")
    mark = processes.mark(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(mark)


def test_processes_of_finds_keeper_runaway_child_and_nobody_else(spawn: Spawn) -> None:
    keeper = spawn(WAIT, marker="marker-1", session=True)
    runaway = int(line_of(spawn(RUNAWAY, marker="marker-1")))
    stranger = spawn(WAIT, marker="marker-2")
    line_of(keeper)
    line_of(stranger)
    found = {process.pid for process in processes.processes_of(cluster_kept_by(keeper.pid))}
    psutil.Process(runaway).kill()
    assert found == {keeper.pid, runaway}


def test_processes_of_a_dead_keeper_still_finds_its_session(spawn: Spawn) -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
        " stdout=subprocess.DEVNULL, env={}); print(child.pid)"
    )
    keeper = spawn(code, session=True)
    mark = processes.mark(keeper.pid)
    orphan = int(line_of(keeper))
    keeper.wait()
    found = [process.pid for process in processes.processes_of(replace(CLUSTER, keeper=mark))]
    assert found == [orphan]
    assert processes.end(replace(CLUSTER, keeper=mark)) == 1
    assert not psutil.pid_exists(orphan)


def test_processes_of_a_reused_keeper_pid_finds_nothing(spawn: Spawn) -> None:
    other = spawn(WAIT, session=True)
    line_of(other)
    long_ago = ProcessMark(pid=other.pid, started=1000.0)
    assert processes.processes_of(replace(CLUSTER, marker="nobody", keeper=long_ago)) == []


def test_end_kills_what_ignores_the_polite_signal(spawn: Spawn) -> None:
    keeper = spawn(STUBBORN, session=True)
    line_of(keeper)
    assert processes.end(cluster_kept_by(keeper.pid, marker="nobody"), grace_seconds=0.05) == 1
    assert not psutil.pid_exists(keeper.pid)


def test_end_without_any_process_ends_nothing() -> None:
    assert processes.end(replace(CLUSTER, marker="nobody", keeper=None)) == 0
