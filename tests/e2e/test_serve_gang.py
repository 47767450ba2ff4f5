"""A model over a slice of two hosts: the tokens of one, and a host that is killed under load."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from tests.e2e.command import Command
from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.tiny_engine import ask, run, tensor_mesh, tokens_of
from tpuctl.engine.engine import Engine, create_engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import RunnerOptions
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.params import param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.text import ByteTokenizer

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SIZES = {"hidden_size": 128, "vocab_size": 384, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}
RECIPE = """
kind = "serve"
[slice]
accelerator = "v4"
topology = "2x2x2"
[model]
source = "two-hosts-model"
tokenizer = "bytes"
[serve]
name = "gang"
port = 0
[engine]
dtype = "float32"
max_length = 128
max_sequences = 8
max_step_tokens = 32
page_size = 16
"""
PROMPTS = ([104, 101, 108, 108, 111], [1, 2, 3], list(range(60, 100)))
SECONDS = 240


class Gang:
    """The command that follows the endpoint, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.ready = self.until("ready")
        self.url = self.ready["url"]

    def until(self, name: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1].get("event") in (name, "failed"):
                break
        assert self.events[-1].get("event") == name, self.events
        return self.events[-1]

    def texts(self, prompts: Any) -> list[str]:
        body = {"model": "gang", "prompt": list(prompts), "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return [choice["text"] for choice in answer.json()["choices"]]


@pytest.fixture(scope="module")
def folder(tpuctl: Command) -> Path:
    path = tpuctl.cwd / "two-hosts-model"
    path.mkdir()
    write_model(path, config=CONFIG | SIZES, dtype=np.float32)
    return path


@pytest.fixture(scope="module")
def gang(tpuctl: Command, folder: Path) -> Iterator[Gang]:
    (tpuctl.cwd / "gang.toml").write_text(RECIPE)
    process = tpuctl.start("serve", "gang.toml", "-o", "json")
    try:
        yield Gang(process)
        stopped = tpuctl("serve", "stop", "gang-1")
        assert stopped.code == 0, stopped.everything
    finally:
        process.kill()
        process.communicate()


def one_host_engine(folder: Path) -> Engine:
    config = CONFIG | SIZES
    spec, mesh = spec_from_config(config), tensor_mesh()
    shardings = param_shardings(spec, mesh)
    loaded = load_params(spec, str(folder), family="llama", shardings=shardings, dtype=jnp.float32)
    sizes = {"max_length": 128, "num_pages": 64, "page_size": 16, "max_running": 8, "max_step_tokens": 32}
    options = EngineOptions(**sizes, min_step_tokens=8, real_vocab=ByteTokenizer().vocab_size)
    return create_engine(spec, loaded.params, mesh=mesh, options=options, run=RunnerOptions(dtype=jnp.float32))


def test_two_hosts_say_what_one_does_also_after_one_was_killed_under_load(gang: Gang, folder: Path) -> None:
    asked = [ask(list(prompt), name=str(i), max_tokens=12, ignore_eos=True) for i, prompt in enumerate(PROMPTS)]
    outputs = run(one_host_engine(folder), *asked)
    one = [ByteTokenizer().decode(tokens_of(outputs[request.request_id])) for request in asked]
    assert gang.texts(PROMPTS) == one

    body = {"model": "gang", "prompt": "x", "max_tokens": 110, "ignore_eos": True}
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(httpx.post, f"{gang.url}/v1/completions", json=body, timeout=60) for _ in range(12)]
        with httpx.stream("POST", f"{gang.url}/v1/completions", json=body | {"stream": True}, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            killed_at = time.time()
            _runner(gang, host=1).kill()
            told = [line for line in lines if line]
        answers = [answer.result() for answer in waiting]
    # What has begun ends with an error that says so; what has not is told to come again.
    assert "host 1 is gone" in told[-1], told[-1]
    lost = [answer for answer in answers if answer.status_code != 200]
    assert lost
    assert {answer.status_code for answer in lost} == {503}
    assert all("Retry-After" in answer.headers for answer in lost)

    again = gang.until("ready")
    assert again["url"] == gang.url
    print(f"ready again {again['at'] - killed_at:.1f} s after the kill")
    assert [event["phase"] for event in gang.events if event["event"] == "phase"].count("lost") == 1
    assert gang.texts(PROMPTS) == one


def _runner(gang: Gang, *, host: int) -> psutil.Process:
    joined = next(event for event in gang.events if event.get("phase") == "joined")
    return psutil.Process(joined["pids"][host])
