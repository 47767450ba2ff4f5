"""A recipe handed over to vLLM, deployed through a real Ray Serve with a stand-in for what vLLM's image imports."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from tests.fakes.model_folders import CONFIG, write_model
from tpuctl.entrypoints.serve_vllm import serve_handover
from tpuctl.errors import JobFailedError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPE = """
kind = "serve"
[slice]
accelerator = "v6e"
topology = "2x4"
[model]
source = "model"
[serve]
engine = "vllm"
name = "handed-over"
port = {port}
"""
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ServingPlan:
    folder: Path = tmp_path_factory.mktemp("vllm")
    (folder / "model").mkdir()
    write_model(folder / "model", config=CONFIG | HEADS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "endpoint.toml").write_text(RECIPE.format(port=free.getsockname()[1]))
    recipe = load_recipe(folder / "endpoint.toml")
    planned = resolve(recipe, environ={}, cwd=folder, source=read_source(recipe, environ={}, cwd=folder))
    assert isinstance(planned, ServingPlan)
    (folder / "run").mkdir()
    return replace(planned, run=replace(planned.run, directory=str(folder / "run")))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    root = str(Path(__file__).parents[2])
    ray.init(address="local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root}})
    yield
    ray.shutdown()


def standing_in(plan: ServingPlan, name: str) -> ServingPlan:
    assert plan.handover is not None
    config = json.loads(plan.handover)
    config["applications"][0]["import_path"] = name
    return replace(plan, handover=json.dumps(config))


def test_config_is_deployed_as_it_stands_and_its_port_answers(
    plan: ServingPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[dict[str, Any]] = []
    deadline = time.monotonic() + 120

    def stop() -> bool:
        assert time.monotonic() < deadline, capsys.readouterr()
        try:
            answer = httpx.get(f"http://127.0.0.1:{plan.endpoint.port}/v1/models", timeout=5)
        except httpx.HTTPError:
            return False
        if answer.status_code == 200 and '"ready"' in capsys.readouterr().out:
            answers.append(answer.json())
        return bool(answers)

    serve_handover(standing_in(plan, "tests.fakes.vllm_stand_in:build_openai_app"), stop=stop)
    assert plan.handover is not None
    (expected,) = json.loads(plan.handover)["applications"][0]["args"]["llm_configs"]
    assert answers[0] == {"path": "/v1/models", "config": expected}


def test_engine_that_can_not_start_ends_the_job_with_its_reason(plan: ServingPlan) -> None:
    with pytest.raises(JobFailedError, match="no chips here"):
        serve_handover(standing_in(plan, "tests.fakes.vllm_stand_in:build_broken_app"), stop=lambda: False)


def test_image_without_vllm_is_said(plan: ServingPlan) -> None:
    with pytest.raises(JobFailedError, match=r"ray\.serve\.llm can't be imported"):
        serve_handover(plan, stop=lambda: False)
