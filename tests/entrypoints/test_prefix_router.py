"""Which replica is asked first: the same for equal beginnings, and few change when a replica comes or goes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tpuctl.entrypoints.prefix_router import PrefixRouter

PREFIXES = [f"beginning {number}" for number in range(200)]


def ranks(prefix: str, names: list[str]) -> list[list[str]]:
    replicas: Any = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]
    request: Any = SimpleNamespace(kwargs={"prefix": prefix}, routing_context=SimpleNamespace(should_backoff=False))
    chosen = asyncio.run(PrefixRouter.choose_replicas(None, replicas, request))  # type: ignore[arg-type]
    assert request.routing_context.should_backoff, "else Ray Serve asks again and again without a pause"
    return [[replica.replica_id.unique_id for replica in rank] for rank in chosen]


def test_equal_beginnings_meet_wherever_the_replicas_stand_in_the_list() -> None:
    for prefix in PREFIXES[:20]:
        assert ranks(prefix, ["a", "b", "c"])[0] == ranks(prefix, ["c", "a", "b"])[0]


def test_beginnings_spread_over_the_replicas_and_the_others_are_next() -> None:
    firsts = [ranks(prefix, ["a", "b", "c"])[0][0] for prefix in PREFIXES]
    assert all(firsts.count(name) > 40 for name in "abc")
    assert {name for rank in ranks(PREFIXES[0], ["a", "b", "c"]) for name in rank} == set("abc")


def test_replica_that_goes_moves_only_its_own_beginnings() -> None:
    before = {prefix: ranks(prefix, ["a", "b", "c"])[0] for prefix in PREFIXES}
    moved = [prefix for prefix in PREFIXES if ranks(prefix, ["a", "b"])[0] != before[prefix]]
    assert {before[prefix][0] for prefix in moved} == {"c"}


def test_request_without_a_beginning_goes_to_any_and_then_to_all() -> None:
    first, rest = ranks("", ["a", "b", "c"])
    assert len(first) == 2
    assert sorted(rest) == ["a", "b", "c"]
    assert ranks("x", ["a"]) == [["a"]]
