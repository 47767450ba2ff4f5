"""A recipe handed over to vLLM: the config is what Ray's own classes take, and what Ray does not check is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_folders import CONFIG, write_model
from tpuctl.errors import RecipeError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

RECIPE = """
kind = "serve"
[slice]
accelerator = "v6e"
topology = "4x4"
[model]
source = "model"
[serve]
engine = "vllm"
name = "handed-over"
"""
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 320}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", config=CONFIG | HEADS)
    (tmp_path / "endpoint.toml").write_text(RECIPE)
    return tmp_path


def planned(folder: Path, *overrides: str) -> ServingPlan:
    recipe = load_recipe(folder / "endpoint.toml", overrides=overrides)
    source = read_source(recipe, environ={}, cwd=folder)
    plan = resolve(recipe, environ={"SERVE_KEY": "k"}, cwd=folder, source=source)
    assert isinstance(plan, ServingPlan)
    return plan


def llm_config(plan: ServingPlan) -> dict[str, Any]:
    assert plan.handover is not None
    (app,) = json.loads(plan.handover)["applications"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    (config,) = app["args"]["llm_configs"]
    found: dict[str, Any] = config
    return found


@pytest.mark.parametrize(
    ("topology", "bundles"), [("4x4", [4, 4, 4, 4]), ("2x4", [8]), ("2x2", [4])], ids=["four-hosts", "one-of-8", "one"]
)
def test_config_is_taken_by_rays_own_classes_and_gives_a_worker_to_each_host(
    folder: Path, topology: str, bundles: list[int]
) -> None:
    from ray.llm._internal.serve.core.configs.accelerators import TPUAccelerator
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

    plan = planned(folder, f"slice.topology={topology}")
    assert plan.entrypoint == "tpuctl.entrypoints.serve_vllm"
    assert plan_loads(plan_dumps(plan)) == plan
    config = llm_config(plan)
    taken = LLMConfig(**config)
    assert taken.accelerator_config.topology == topology
    assert taken.engine_kwargs["tensor_parallel_size"] == sum(bundles)
    assert set(config) <= set(LLMConfig.model_fields), "a key Ray does not know would be dropped"
    made = TPUAccelerator(taken.accelerator_config).default_bundles(
        num_devices=sum(bundles), accelerator_type_str=taken.accelerator_type
    )
    assert [bundle["TPU"] for bundle in made] == bundles


def test_recipe_decides_on_lengths_replicas_and_further_arguments(folder: Path) -> None:
    more = ("slice.slices=3", "serve.min_replicas=1", "engine.max_length=128", "serve.engine_args.kv_cache_dtype=fp8")
    config = llm_config(planned(folder, *more, "serve.engine_args.pipeline_parallel_size=2"))
    kwargs = config["engine_kwargs"]
    assert (kwargs["max_model_len"], kwargs["kv_cache_dtype"]) == (128, "fp8")
    assert (kwargs["tensor_parallel_size"], kwargs["pipeline_parallel_size"]) == (8, 2)
    scaling = config["deployment_config"]["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 3)


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("serve.engine_args.tensor_parallel_size=8", "serve.engine_args", "is 8, and the slice has 16 chips"),
        ("serve.engine_args.pipeline_parallel_size=3", "serve.engine_args", "is 15, and the slice has 16 chips"),
        ("serve.engine_args.pipeline_parallel_size=two", "serve.engine_args", "expected a number"),
        ("serve.engine_args.tensor_paralel_size=16", "serve.engine_args", "vLLM has no tensor_paralel_size"),
        ("serve.engine_args.max_model_len=64", "serve.engine_args", "set by the plan"),
        ("slice.topology=9x9", "slice.topology", ""),
        ("serve.api_key_file=keys", "serve.api_key_file", "neither API keys nor TLS"),
        ("engine.num_pages=1000", "engine.num_pages", "counts its pages itself"),
        ("engine.weights=int8", "engine.weights", "in ways of its own"),
        ("engine.speculate=4", "engine.speculate", "in ways of its own"),
        ("engine.kv_dtype=fp8", "engine.kv_dtype", "in its own way"),
        ("serve.port=0", "serve.port", "any free port"),
        ("model.chat_template=chat.jinja", "model.chat_template", "does not hand it"),
    ],
)
def test_what_ray_would_not_check_is_refused_at_its_key(folder: Path, override: str, key: str, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        planned(folder, override)
    problems = error.value.parts or (error.value,)
    assert any(problem.where and problem.where.key == key and words in problem.message for problem in problems)
    assert all(problem.hint for problem in problems)


def test_arguments_for_vllm_are_refused_where_our_own_engine_serves(folder: Path) -> None:
    with pytest.raises(RecipeError, match="own engine takes none"):
        planned(folder, "serve.engine=tpuctl", "serve.engine_args.kv_cache_dtype=fp8")


def test_argument_nobody_here_knows_goes_through_and_is_said(folder: Path) -> None:
    plan = planned(folder, "serve.engine_args.brand_new_thing=1")
    assert llm_config(plan)["engine_kwargs"]["brand_new_thing"] == 1
    assert any("brand_new_thing goes to vLLM unchecked" in note for note in plan.notes)
