"""The cluster group: what reaches stdout, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.test_registry import CLUSTER
from tests.fakes.shapes import ONE_HOST
from tpuctl.cli.app import run
from tpuctl.cluster.registry import Cluster, ProcessMark, Registry
from tpuctl.cluster.shape import SimulatedShape

LONG_GONE = ProcessMark(pid=1, started=0.0)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Registry]:
    """Makes clusters known whose processes are long gone; no other cluster is."""
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    for variable in ("TPUCTL_CLUSTER", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    registry = Registry.at_home()

    def make(*names: str) -> Registry:
        for name in names:
            registry.save(replace(CLUSTER, name=name, temp_dir=str(tmp_path / "gone"), keeper=LONG_GONE))
        return registry

    return make


def test_ls_json_tells_what_is_wrong(known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]) -> None:
    known("one")
    assert run(["cluster", "ls", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (entry,) = document["clusters"]
    assert document["schema"] == "tpuctl.clusters/1"
    assert (entry["name"], entry["problems"], entry["simulated"]) == ("one", ["its processes are gone"], True)


def test_ls_quiet_gives_names_only(known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]) -> None:
    known("one", "two")
    assert run(["cluster", "ls", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == ["one", "two"]


def test_down_of_several_wants_a_name(known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]) -> None:
    registry = known("one", "two")
    assert run(["cluster", "down"]) == 2
    assert "several simulated clusters: one, two" in capsys.readouterr().err
    assert registry.names() == ["one", "two"]


def test_down_all_ends_every_one(known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]) -> None:
    registry = known("one", "two")
    assert run(["cluster", "down", "--all", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "tpuctl.cluster.down/1", "ended": ["one", "two"]}
    assert registry.names() == []


def test_down_of_nothing_is_no_error_but_of_an_unknown_name_is(
    known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    known()
    assert run(["cluster", "down"]) == 0
    assert run(["cluster", "down", "--name", "nobody"]) == 2
    assert "there is no simulated cluster 'nobody'" in capsys.readouterr().err


def test_status_without_any_cluster_says_how_to_name_one(
    known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    known("one")
    assert run(["cluster", "status"]) == 3
    assert "--cluster" in capsys.readouterr().err


def test_status_of_a_cluster_that_does_not_answer_is_unavailable(
    known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    known()
    assert run(["cluster", "status", "--cluster", "http://127.0.0.1:9"]) == 3
    assert "cannot connect to http://127.0.0.1:9" in capsys.readouterr().err


def test_up_of_an_impossible_topology_is_a_usage_error(
    known: Callable[..., Registry], capsys: pytest.CaptureFixture[str]
) -> None:
    registry = known()
    assert run(["cluster", "up", "--accelerator", "v4", "--topology", "2x2"]) == 2
    assert "v4 has no topology 2x2" in capsys.readouterr().err
    assert registry.names() == []


@pytest.mark.ray
def test_status_of_a_simulated_slice_shows_it_idle_and_simulated(
    simulated_cluster: Callable[[SimulatedShape], Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = simulated_cluster(ONE_HOST)
    assert run(["cluster", "status", "--cluster", cluster.address, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (view,) = document["slices"]
    assert (document["address"], document["source"]) == (cluster.address, "--cluster")
    assert (view["name"], view["simulated"], view["problems"], view["hosts_expected"]) == ("sim-0", True, [], 1)

    assert run(["cluster", "status", "--cluster", cluster.address]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["sim-0", "v6e (simulated)", "2x2", "1/1", "4", "idle"]
