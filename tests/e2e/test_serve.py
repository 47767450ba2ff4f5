"""Serving as a user does it: one command to a URL, the official client against it, a stop that lets answers end."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.command import Command

pytestmark = pytest.mark.ray

RECIPE = (Path(__file__).parents[2] / "recipes" / "serve-smoke.toml").read_text(encoding="utf-8")
READY_SECONDS = 240


class Endpoint:
    """A served smoke recipe: the command that follows it, and what it said when it was ready."""

    def __init__(self, process: subprocess.Popen[str], events: list[dict[str, Any]]) -> None:
        self.process = process
        self.events = events

    @property
    def ready(self) -> dict[str, Any]:
        return next(item for item in self.events if item["event"] == "ready")


@pytest.fixture(scope="module")
def endpoint(tpuctl: Command) -> Iterator[Endpoint]:
    (tpuctl.cwd / "endpoint.toml").write_text(RECIPE)
    process = tpuctl.start("serve", "endpoint.toml", "--set", "serve.name=smoke", "-o", "json")
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + READY_SECONDS
    for line in process.stdout:
        events.append(json.loads(line))
        assert time.monotonic() < deadline, events
        if events[-1]["event"] in ("ready", "failed"):
            break
    assert events, process.communicate()
    assert events[-1]["event"] == "ready", events
    try:
        yield Endpoint(process, events)
    finally:
        process.kill()
        process.communicate()


def test_ready_comes_after_weights_shapes_and_the_check(endpoint: Endpoint) -> None:
    phases = [item["phase"] for item in endpoint.events if item["event"] == "phase"]
    assert phases[:2] == ["driver", "reserved"]
    assert phases.index("weights") < phases.index("compiled") < phases.index("checked")
    assert endpoint.ready["curl"].startswith(f"curl {endpoint.ready['url']}/v1/completions")


def test_official_client_gets_the_same_greedy_text_alone_and_in_company(endpoint: Endpoint) -> None:
    client = openai.OpenAI(base_url=f"{endpoint.ready['url']}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["smoke"]

    def text(n: int, **more: Any) -> list[str]:
        answer = client.completions.create(model="smoke", prompt="hello", max_tokens=12, n=n, **more)
        return [choice.text for choice in answer.choices]

    alone = text(1, temperature=0)
    assert text(6, temperature=0) == alone * 6
    assert text(3, seed=7) == text(3, seed=7)
    stream = client.completions.create(model="smoke", prompt="hello", max_tokens=12, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == alone[0]


def test_clients_that_leave_free_the_pages(endpoint: Endpoint) -> None:
    url = endpoint.ready["url"]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for _ in range(8):
        stream = client.completions.create(model="smoke", prompt="x" * 40, max_tokens=200, stream=True)
        next(iter(stream))
        stream.close()
    deadline = time.monotonic() + 10
    while 'num_requests_running{model_name="smoke"} 0.0' not in (text := httpx.get(f"{url}/metrics").text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    assert 'kv_cache_usage_perc{model_name="smoke"} 0.0' in text


def test_endpoint_is_listed_measured_and_stopped(endpoint: Endpoint, tpuctl: Command) -> None:
    url = endpoint.ready["url"]
    listed = json.loads(tpuctl("serve", "ls", "-o", "json").out)["endpoints"]
    (mine,) = [item for item in listed if item["model"] == "smoke"]
    assert (mine["status"], mine["url"]) == ("RUNNING", url)
    assert json.loads(tpuctl("serve", "status", mine["id"], "-o", "json").out)["answers"] == "ready"

    options = ("--requests", 4, "--concurrency", 2, "--prompt-tokens", 32, "--output-tokens", 8)
    measured = tpuctl("bench", "serve", url, *options, "-o", "json")
    assert measured.code == 0, measured.everything
    (figures,) = json.loads(measured.out)["measurements"]
    assert (figures["requests"], figures["failed"], figures["output_tokens"]) == (4, 0, 32)

    stopped = tpuctl("serve", "stop", mine["id"])
    assert stopped.code == 0, stopped.everything
    out, err = endpoint.process.communicate(timeout=60)
    last = [json.loads(line) for line in out.splitlines()]
    assert any(item["event"] == "stopped" for item in last), out + err
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")


@pytest.mark.slow
def test_endpoint_that_can_not_be_made_says_why(tpuctl: Command) -> None:
    (tpuctl.cwd / "keys.toml").write_text(RECIPE.replace("port = 0", 'port = 0\napi_key_file = "no-such-file"'))
    failed = tpuctl("serve", "keys.toml")
    assert failed.code == 1, failed.everything
    assert "no-such-file" in failed.everything
