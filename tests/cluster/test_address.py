from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.test_registry import CLUSTER
from tpuctl.cluster.address import Target, choose, open_session, simulated_at
from tpuctl.cluster.registry import Registry
from tpuctl.errors import UsageError

ENVIRON = {"TPUCTL_CLUSTER": "ours:1", "RAY_API_SERVER_ADDRESS": "http://rays:2"}


def test_choose_takes_the_first_that_is_given() -> None:
    only_ray = {"RAY_API_SERVER_ADDRESS": "http://rays:2"}
    assert choose("flag:1", recipe="recipe:2", environ=ENVIRON, running=CLUSTER).source == "--cluster"
    assert choose(None, recipe="recipe:2", environ=ENVIRON, running=CLUSTER).source == "recipe"
    assert choose(None, environ=ENVIRON, running=CLUSTER) == Target(address="http://ours:1", source="TPUCTL_CLUSTER")
    assert choose(None, environ=only_ray, running=CLUSTER).address == "http://rays:2"
    assert choose(None, environ={}, running=CLUSTER) == Target(address=CLUSTER.address, source="running")
    assert choose(None, environ={}) == Target(address=None, source="start")


def test_choose_empty_variable_counts_as_unset() -> None:
    assert choose(None, environ={"TPUCTL_CLUSTER": "", "RAY_API_SERVER_ADDRESS": ""}).source == "start"


def test_choose_impossible_address_is_refused_rather_than_skipped() -> None:
    with pytest.raises(UsageError, match="ray://"):
        choose("ray://head:10001", environ=ENVIRON, running=CLUSTER)


def test_target_says_which_source_won() -> None:
    assert str(choose(None, environ=ENVIRON)) == "http://ours:1 (from TPUCTL_CLUSTER)"
    assert "to be started" in str(choose(None, environ={}))


def test_open_session_to_a_simulated_cluster_uses_its_own_token(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    token = registry.make_token("one")
    registry.save(replace(CLUSTER, address="http://127.0.0.1:5", token_path=str(token)))
    theirs = {"RAY_AUTH_TOKEN": "theirs"}

    with open_session("localhost:5", environ=theirs, registry=registry) as own:
        assert own.headers == {"Authorization": f"Bearer {token.read_text()}"}
    with open_session("localhost:6", environ=theirs, registry=registry) as other:
        assert other.headers == {"Authorization": "Bearer theirs"}
    assert simulated_at("127.0.0.1:6", registry=registry) is None
