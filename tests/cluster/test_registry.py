from __future__ import annotations

import json
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.shapes import ONE_HOST, TWO_HOSTS
from tpuctl.cluster.registry import Cluster, HostMark, ProcessMark, Registry, state_dir
from tpuctl.cluster.shape import NodeSize
from tpuctl.errors import ClusterError, UsageError

CLUSTER = Cluster(
    name="one",
    marker="abc",
    created=1.5,
    shape=ONE_HOST,
    size=NodeSize(),
    temp_dir="/tmp/tpuctl-x",
    token_path="/state/token",
    keeper=ProcessMark(pid=7, started=2.5),
    address="http://127.0.0.1:1",
    hosts=(HostMark(slice_name="sim-0", worker_id=0, node_id="n", raylet=ProcessMark(pid=8, started=3.0)),),
    phases={"ready": 4.0},
)


def test_load_gives_what_was_saved(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "clusters")
    registry.save(CLUSTER)
    registry.save(replace(CLUSTER, name="unborn", keeper=None, hosts=()))
    mixed = replace(CLUSTER, name="mixed", shape=replace(ONE_HOST, beside=(TWO_HOSTS,)))
    registry.save(mixed)
    assert registry.names() == ["mixed", "one", "unborn"]
    assert registry.load("one") == CLUSTER
    assert registry.load("mixed") == mixed
    assert registry.load("unborn") == replace(CLUSTER, name="unborn", keeper=None, hosts=())


def test_load_of_an_unknown_name_is_none_and_of_an_impossible_one_an_error(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    assert registry.load("nobody") is None
    for name in ("../elsewhere", "", "Big", "a/b"):
        with pytest.raises(UsageError, match="cluster name"):
            registry.load(name)


def test_load_of_another_versions_state_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "state.json").write_text(json.dumps({"schema": "tpuctl.cluster/99"}))
    with pytest.raises(ClusterError, match=r"state\.json was written by another version"):
        Registry(tmp_path).load("old")


def test_make_token_is_new_each_time_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first = registry.make_token("one").read_text()
    path = registry.make_token("one")
    assert path.read_text() != first
    assert len(first) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_remove_leaves_no_file_of_the_cluster(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.save(CLUSTER)
    registry.make_token("one")
    registry.remove("one")
    assert registry.names() == []
    assert list(tmp_path.iterdir()) == []


def test_lock_held_makes_the_second_wait(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with registry.lock("one"):
            order.append("second")

    thread = threading.Thread(target=second)
    with registry.lock("one"):
        thread.start()
        waiting.wait()
        thread.join(timeout=0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_state_dir_own_variable_wins_over_the_cache() -> None:
    assert state_dir({"TPUCTL_STATE_DIR": "/own", "XDG_CACHE_HOME": "/cache"}) == Path("/own")
    assert state_dir({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/tpuctl")
    assert state_dir({}) == Path.home() / ".cache" / "tpuctl"
