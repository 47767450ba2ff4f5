"""The adapters of a recipe of serving: what they amount to, and what of them is refused where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.adapter_folders import LORAS, write_adapter_folder
from tests.fakes.model_folders import CONFIG, write_model
from tpuctl.cli.plan import describe, resolve_here
from tpuctl.errors import RecipeError
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

RECIPE = """
kind = "serve"
[slice]
accelerator = "v5e"
topology = "2x2"
[model]
source = "tiny"
[serve]
name = "tiny"
[serve.adapters]
"""
BOTH = 'poet = "poet"\n"clerk-v1.2" = "clerk"\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model(tmp_path / "tiny")
    for name in LORAS:
        write_adapter_folder(tmp_path / name, name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(here: Path, adapters: str, *overrides: str) -> ServingPlan:
    (here / "endpoint.toml").write_text(RECIPE + adapters)
    loaded = load_recipe(here / "endpoint.toml", overrides=overrides)
    plan = resolve(loaded, environ={}, cwd=here, source=read_source(loaded, environ={}, cwd=here))
    assert isinstance(plan, ServingPlan)
    return plan


def test_adapters_are_what_their_folders_say_and_cross_as_json(here: Path) -> None:
    plan = planned(here, BOTH)
    poet, clerk = plan.adapters
    assert (poet.name, poet.uri, poet.is_run, poet.lora) == ("poet", str(here / "poet"), False, LORAS["poet"])
    assert (clerk.name, clerk.lora) == ("clerk-v1.2", LORAS["clerk"])
    assert plan_loads(plan_dumps(plan)) == plan
    assert "clerk-v1.2: " in describe(plan)
    assert "rank 4, alpha 12 on q_proj, v_proj, o_proj" in describe(plan)
    assert planned(here, BOTH, "serve.adapters.poet=unset").adapters == (clerk,)


def test_memory_of_adapters_is_none_for_pages(here: Path) -> None:
    """Of rank 6 on five projections, in bfloat16: on four devices whole on the residual stream's side."""
    share = ("engine.memory_share=0.0001", "engine.max_sequences=512", "engine.page_size=1")
    with_, without = planned(here, BOTH, *share), planned(here, "", *share)
    hidden, heads, kv, inner, devices = 32, 32, 16, 48, 4
    split = heads + 2 * kv + heads + inner + inner  # two devices hold each key head
    numbers = 3 * 6 * (devices * 5 * hidden + split)
    assert without.engine.page_bytes == with_.engine.page_bytes
    pages = without.engine.num_pages - with_.engine.num_pages
    assert pages == pytest.approx(numbers * 2 / with_.engine.page_bytes, abs=1)


def trained(here: Path, *, lora: bool) -> None:
    """The record of a training run."""
    recipe = f"""
kind = "train"
[slice]
accelerator = "v5e"
topology = "1x1"
[model]
source = "{here / "tiny"}"
[data]
uri = "builtin:python-stdlib"
[train]
steps = 2
global_batch = 1
sequence_length = 64
{"[lora]" if lora else ""}
{"rank = 8" if lora else ""}
{"dropout = 0.1" if lora else ""}
"""
    (here / "train.toml").write_text(recipe)
    loaded = load_recipe(here / "train.toml")
    plan = resolve(loaded, environ={}, cwd=here, source=read_source(loaded, environ={}, cwd=here))
    (here / "run").mkdir()
    (here / "run" / "run.json").write_text(json.dumps({"plan": json.loads(plan_dumps(plan))}))


def test_adapter_may_be_a_runs_checkpoint(here: Path) -> None:
    trained(here, lora=True)
    newest, older = planned(here, 'new = "run"\nold = "run@1"\n').adapters
    assert (newest.uri, newest.is_run, newest.step, older.step) == (str(here / "run"), True, None, 1)
    assert (newest.lora.rank, newest.lora.targets, newest.lora.dropout) == (8, tuple(TARGETS), 0.0)
    assert "step 1 of" in describe(planned(here, 'old = "run@1"\n'))


def change_config(**changed: Any) -> Any:
    def change(here: Path) -> None:
        file = here / "poet" / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def make_fused(here: Path) -> None:
    (here / "tiny" / "config.json").write_text(json.dumps(CONFIG | {"model_type": "phi3"}))


@pytest.mark.parametrize(
    ("damage", "adapters", "key", "message"),
    [
        (None, 'poet = "nowhere"', "serve.adapters.poet", "nowhere is no adapter: it has no adapter_config.json"),
        (None, 'poet = ""', "serve.adapters.poet", "must not be empty"),
        (None, "poet = 5", "serve.adapters.poet", "expected a string"),
        (None, 'poet = "s3://bucket/poet"', "serve.adapters.poet", "can't be used here"),
        (None, '"two words" = "poet"', "serve.adapters.two words", "no such name"),
        (None, 'tiny = "poet"', "serve.adapters.tiny", "the name of the model itself"),
        (change_config(use_dora=True), BOTH, "serve.adapters.poet", "it sets use_dora"),
        (change_config(r="4"), BOTH, "serve.adapters.poet", "r is '4', and has to be a number"),
        (change_config(lora_alpha=None), BOTH, "serve.adapters.poet", "lora_alpha is None"),
        (lambda here: (here / "poet" / "adapter_model.safetensors").write_bytes(b"x"), BOTH, "serve.adapters.poet", ""),
        (lambda here: trained(here, lora=False), 'poet = "run"', "serve.adapters.poet", "trained all weights"),
        (make_fused, BOTH, "serve.adapters", "several projections in one matrix"),
    ],
)
def test_adapter_that_can_not_be_served_is_refused_at_its_line(
    here: Path, damage: Any, adapters: str, key: str, message: str
) -> None:
    if damage is not None:
        damage(here)
    with pytest.raises(RecipeError) as refused:
        planned(here, adapters)
    problems = refused.value.parts or (refused.value,)
    (found,) = [problem for problem in problems if problem.where and problem.where.key == key]
    assert message in found.message
    assert found.where is not None
    assert found.where.line is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.source=unset", "model.preset=tiny-1m"], "there is none"),
        (["serve.engine=vllm"], "vLLM is handed a model alone"),
        (["model.source=builtin:minilm-l6-v2", "slice.topology=1x1"], "is an encoder"),
    ],
)
def test_adapters_beside_what_has_none_are_refused(here: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        planned(here, BOTH, *overrides)


def test_check_contacts_no_bucket_for_an_adapter_in_one(here: Path) -> None:
    (here / "endpoint.toml").write_text(RECIPE + BOTH + 'far = "gs://no-such-bucket/far"\n')
    plan = resolve_here(load_recipe(here / "endpoint.toml"), buckets=False)
    assert isinstance(plan, ServingPlan)
    assert [adapter.name for adapter in plan.adapters] == ["poet", "clerk-v1.2"]
