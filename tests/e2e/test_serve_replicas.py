"""Two replicas on two slices: answered by both, one that is killed under load costs no request that had not begun."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.command import Command
from tests.e2e.following import FollowedEndpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPE = (Path(__file__).parents[2] / "recipes" / "serve-smoke.toml").read_text(encoding="utf-8")


class Replicas(FollowedEndpoint):
    """The endpoint, and the replicas that it told of."""

    @property
    def pids(self) -> list[int]:
        return [event["pid"] for event in self.events if event.get("phase") == "replica ready"]

    def ask(self, prompt: str, **more: Any) -> httpx.Response:
        body = {"model": "twice", "prompt": prompt, "max_tokens": 12, "temperature": 0, **more}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)


@pytest.fixture(scope="module")
def replicas(tpuctl: Command) -> Iterator[Replicas]:
    (tpuctl.cwd / "twice.toml").write_text(RECIPE)
    process = tpuctl.start("serve", "twice.toml", "--set", "slice.slices=2", "--set", "serve.name=twice", "-o", "json")
    try:
        yield Replicas(process)
        stopped = tpuctl("serve", "stop", "twice-1")
        assert stopped.code == 0, stopped.everything
    finally:
        process.kill()
        process.communicate()


def test_both_replicas_answer_alike_and_equal_beginnings_meet(replicas: Replicas) -> None:
    assert len(set(replicas.pids)) == 2
    phases = [event["phase"] for event in replicas.events if event["event"] == "phase"]
    assert phases.count("checked") == 2, "each held against the plain forward pass"
    assert len({replicas.ask("hello").json()["choices"][0]["text"] for _ in range(4)}) == 1
    long = "begins alike " * 15
    cached = [replicas.ask(long).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(4)]
    assert all(count > 0 for count in cached[1:]), cached


def test_replica_killed_under_load_costs_no_request_that_had_not_begun(replicas: Replicas) -> None:
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(replicas.ask, f"{number} of many", max_tokens=100) for number in range(36)]
        psutil.Process(replicas.pids[0]).kill()
        answers = [answer.result() for answer in waiting]
    assert [answer.status_code for answer in answers] == [200] * 36, [answer.text for answer in answers]


def test_replica_without_a_slice_for_it_is_refused_in_seconds(replicas: Replicas, tpuctl: Command) -> None:
    (tpuctl.cwd / "late.toml").write_text(RECIPE)
    refused = tpuctl("serve", "late.toml", "--set", "slice.slices=2", timeout_seconds=60)
    assert refused.code == 3, refused.everything
    assert "busy with" in refused.err
    assert "twice-1" in refused.err
