"""Simulated slices: real Ray nodes, started as few times as will do."""

from __future__ import annotations

import glob
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.test_capacity import WANT
from tests.cluster.test_registry import CLUSTER
from tests.fakes.shapes import ONE_HOST, TWO_HOSTS
from tpuctl.cluster import inspect, simulated
from tpuctl.cluster.capacity import condition, find
from tpuctl.cluster.processes import processes_of
from tpuctl.cluster.registry import Cluster, ProcessMark, Registry
from tpuctl.cluster.shape import SimulatedShape
from tpuctl.errors import CapacityError, ClusterError

DEADLINE_SECONDS = 90.0
LONG_GONE = ProcessMark(pid=1, started=0.0)

# Reserves every host and says what its processes see; then sits there until it is told to go.
GANG = """
import os, time, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
ray.init(address="auto")
group = placement_group([{"TPU": 4, "CPU": 1}] * 2, strategy="STRICT_SPREAD")
@ray.remote(num_cpus=1, resources={"TPU": 4}, scheduling_strategy=In(placement_group=group))
def seat():
    names = ("TPUCTL_SIMULATED", "TPU_NAME", "TPU_WORKER_ID", "JAX_PLATFORMS", "XLA_FLAGS")
    return [os.environ.get(name) for name in names]
print("seats", sorted(ray.get([seat.remote(), seat.remote()])), flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """What ``condition`` gives once it gives something true; Ray offers nothing to wait on from outside."""
    deadline, found = time.monotonic() + DEADLINE_SECONDS, None
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {DEADLINE_SECONDS:.0f} s: {what}; last {found!r}")


def submit(cluster: Cluster, entrypoint: str, submission_id: str) -> None:
    with cluster.connect() as connection:
        connection.post("/api/jobs/", json={"entrypoint": entrypoint, "submission_id": submission_id})


def job(cluster: Cluster, submission_id: str) -> dict[str, Any]:
    with cluster.connect() as connection:
        found: dict[str, Any] = connection.get_json(f"/api/jobs/{submission_id}")
        return found | connection.get_json(f"/api/jobs/{submission_id}/logs")


@pytest.fixture(scope="module")
def one_host(simulated_cluster: Callable[[SimulatedShape], Cluster]) -> Cluster:
    return simulated_cluster(ONE_HOST)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own, for clusters that a test breaks."""
    own = Registry(tmp_path / "clusters")
    yield own
    for name in own.names():
        simulated.down(name, registry=own)


def test_up_that_takes_too_long_fails_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    before = set(glob.glob("/tmp/tpuctl-*"))
    with pytest.raises(ClusterError, match="did not start in time"):
        simulated.up(ONE_HOST, name="late", registry=registry, timeout_seconds=0.01)
    assert registry.names() == []
    assert set(glob.glob("/tmp/tpuctl-*")) <= before
    assert not [process for process in psutil.process_iter() if str(tmp_path) in " ".join(_command(process))]


def test_up_of_more_hosts_than_a_machine_bears_is_refused(registry: Registry) -> None:
    with pytest.raises(CapacityError, match="64 Ray nodes"):
        simulated.up(replace(TWO_HOSTS, hosts=32, slices=2), registry=registry)


def test_status_and_down_of_a_crashed_cluster_find_and_clean_its_leftovers(registry: Registry, tmp_path: Path) -> None:
    temp_dir = tmp_path / "tpuctl-left"
    temp_dir.mkdir()
    registry.save(replace(CLUSTER, temp_dir=str(temp_dir), keeper=LONG_GONE))
    assert _status(registry).problems == ("its processes are gone",)
    assert simulated.running(registry=registry) is None
    assert simulated.down(CLUSTER.name, registry=registry)
    assert not temp_dir.exists()
    assert not simulated.down(CLUSTER.name, registry=registry)


def test_down_deletes_no_directory_that_is_not_a_clusters(registry: Registry, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    registry.save(replace(CLUSTER, temp_dir=str(precious), keeper=None, address=""))
    assert _status(registry).problems == ("it never came up",)
    assert simulated.down(CLUSTER.name, registry=registry)
    assert precious.is_dir()


@pytest.mark.ray
def test_up_takes_a_job_at_once_in_the_environment_of_its_host(one_host: Cluster) -> None:
    submit(one_host, 'python -c \'import os, ray; print("on", os.environ["TPU_NAME"], ray.__version__)\'', "first")
    until(lambda: job(one_host, "first")["status"] in ("SUCCEEDED", "FAILED"), "the job ends")
    assert job(one_host, "first")["status"] == "SUCCEEDED"
    assert "on sim-0 2." in job(one_host, "first")["logs"]


@pytest.mark.ray
def test_up_again_finds_the_same_cluster(one_host: Cluster, state_dir: Path) -> None:
    registry = Registry(state_dir / "clusters")
    again = simulated.up(ONE_HOST, registry=registry)
    assert (again.address, again.reused) == (one_host.address, True)
    assert simulated.running(ONE_HOST, registry=registry) == replace(one_host, reused=False)
    assert simulated.running(replace(ONE_HOST, topology="2x4", hosts=2), registry=registry) is None
    with pytest.raises(ClusterError, match="is up, but with 1 slice of TPU-V6E 2x2"):
        simulated.up(TWO_HOSTS, name=one_host.name, registry=registry)


@pytest.mark.ray
def test_up_keeps_strangers_out(one_host: Cluster) -> None:
    from tpuctl.connection import AuthError, Connection

    with Connection(one_host.address) as stranger, pytest.raises(AuthError):
        stranger.get("/api/jobs/")


@pytest.mark.ray
def test_two_hosts_live_serve_die_and_leave_nothing(one_host: Cluster, registry: Registry) -> None:
    cluster = simulated.up(TWO_HOSTS, registry=registry)
    want = replace(
        WANT, generation="v4", accelerator_type="TPU-V4", pod_type="v4-16", topology="2x2x2", hosts=2, chips=8
    )
    with cluster.connect() as connection:
        (idle,) = find(inspect.slices(connection), {"": want})[""]
        assert [host.worker_id for host in idle.hosts] == [0, 1]
        assert idle.simulated

        script = Path(cluster.temp_dir) / "gang.py"
        script.write_text(GANG)
        submit(cluster, f"python {script}", "gang")
        log = until(lambda: "seats" in (text := job(cluster, "gang")["logs"]) and text, "the gang sits")
        flags = "--xla_force_host_platform_device_count=4"
        assert f"seats [['1', 'sim-0', '0', 'cpu', '{flags}'], ['1', 'sim-0', '1', 'cpu', '{flags}']]" in log
        (busy,) = inspect.slices(connection)
        assert condition(busy) == ["busy with job gang"]

        os.kill(cluster.hosts[1].raylet.pid, signal.SIGKILL)
        assert until(lambda: _status(registry).problems, "the loss is seen") == ("slice sim-0 has lost host 1",)
        lost = until(lambda: [s for s in inspect.slices(connection) if s.dead], "Ray calls the node dead")
        assert condition(lost[0])[0].startswith("1 of 2 hosts alive (worker 1 missing: node")

    with one_host.connect() as connection:
        assert condition(inspect.slices(connection)[0]) == []

    assert cluster.keeper is not None
    os.kill(cluster.keeper.pid, signal.SIGKILL)
    until(lambda: not _status(registry).alive, "the keeper is gone")
    assert stat.S_IMODE(Path(cluster.temp_dir).stat().st_mode) == 0o700
    assert simulated.down(cluster.name, registry=registry)
    assert processes_of(cluster) == []
    assert not Path(cluster.temp_dir).exists()
    assert registry.names() == []


def _status(registry: Registry) -> simulated.ClusterStatus:
    (entry,) = simulated.status(registry=registry)
    return entry


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
