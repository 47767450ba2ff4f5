"""Two models behind one URL, on slices of different shapes: each answers by its name, one's end is not the other's."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.e2e.command import Command
from tests.e2e.following import FollowedEndpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPE = (Path(__file__).parents[2] / "recipes" / "serve-models.toml").read_text(encoding="utf-8")
# The second model has four chips, and frees them after a few seconds without a request.
SETTINGS = ("models.other.slice.topology=2x2", "models.other.serve.idle=2s", "run.name=both")
PATIENCE_SECONDS = 120


class Models(FollowedEndpoint):
    """The endpoint, and OpenAI's client for it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=PATIENCE_SECONDS, max_retries=0)

    def say(self, model: str, prompt: str = "hello") -> str:
        answer = self.client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0)
        assert answer.model == model
        return answer.choices[0].text

    def pid(self, model: str) -> int:
        return next(
            int(event["pid"])
            for event in self.events
            if event.get("phase") == "replica ready" and event["model"] == model
        )

    @property
    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=30).text


@pytest.fixture(scope="module")
def models(tpuctl: Command) -> Iterator[Models]:
    (tpuctl.cwd / "both.toml").write_text(RECIPE)
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    process = tpuctl.start("serve", "both.toml", *sets, "-o", "json")
    try:
        yield Models(process)
        stopped = tpuctl("serve", "stop", "both-1")
        assert stopped.code == 0, stopped.everything
    finally:
        process.kill()
        process.communicate()


def test_each_model_answers_by_its_name(models: Models) -> None:
    assert models.events[-1]["models"] == ["one", "other"]
    assert [model.id for model in models.client.models.list()] == ["one", "other"]
    assert models.say("one") == models.say("one") != models.say("other")
    chunks = list(
        models.client.completions.create(model="other", prompt="hello", max_tokens=12, temperature=0, stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == models.say("other")
    with pytest.raises(openai.NotFoundError) as unknown:
        models.say("another")
    assert unknown.value.code == "model_not_found"
    unnamed = httpx.post(f"{models.url}/tokenize", json={"prompt": "hello"}, timeout=30)
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")


def test_metrics_are_those_of_both_models(models: Models) -> None:
    models.say("one")
    models.say("other")
    for name in ("one", "other"):
        # Replicas tell of themselves every second.
        until(lambda name=name: f'vllm:generation_tokens_total{{model_name="{name}"' in models.metrics)  # type: ignore[misc]


def test_model_of_which_the_only_replica_is_killed_comes_back_and_the_other_answers_meanwhile(models: Models) -> None:
    psutil.Process(models.pid("one")).kill()
    assert models.say("other") == models.say("other")
    assert models.say("one")
    until(lambda: httpx.get(f"{models.url}/ready", timeout=30).status_code == 200)


def test_model_that_nobody_asks_for_frees_its_slice_and_wakes_when_it_is_asked_for(
    models: Models, tpuctl: Command
) -> None:
    before = models.say("other")
    until(lambda: "idle" in states(tpuctl)["2x2"])
    assert "both-1" in states(tpuctl)["1x1"]
    assert httpx.get(f"{models.url}/ready", timeout=30).json() == {"status": "ready"}
    assert models.say("other") == before


def test_models_without_slices_for_them_are_refused_in_seconds(models: Models, tpuctl: Command) -> None:
    models.say("other")
    (tpuctl.cwd / "late.toml").write_text(RECIPE)
    sets = [word for setting in SETTINGS[:2] for word in ("--set", setting)]
    refused = tpuctl("serve", "late.toml", *sets, timeout_seconds=60)
    assert refused.code == 3, refused.everything
    assert "v5e 1x1 for one" in refused.err
    assert "busy with" in refused.err


def states(tpuctl: Command) -> dict[str, str]:
    """What is said of each slice of the cluster, by its topology."""
    known = json.loads(tpuctl("cluster", "status", "-o", "json").out)
    return {view["topology"]: "; ".join(view["problems"]) or "idle" for view in known["slices"]}


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not good():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.5)
