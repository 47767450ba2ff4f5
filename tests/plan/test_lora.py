"""The table [lora]: what it amounts to, and what of it is refused where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.model_folders import CONFIG, write_model
from tests.plan.test_source import plan_of
from tpuctl.cli.plan import describe
from tpuctl.errors import RecipeError
from tpuctl.modelspec import num_parameters
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.plan.budget import Workload, estimate
from tpuctl.plan.schema import plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.recipe.load import load_recipe


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny")
    return tmp_path


def test_rank_alone_gives_adapters_on_every_projection_at_a_scale_of_one(here: Path) -> None:
    plan = plan_of(here, "lora.rank=8")
    assert plan.lora == LoraPlan(rank=8, alpha=8.0, targets=tuple(TARGETS), dropout=0.0, adapter=None)
    assert plan.lora.scale == 1.0
    assert plan_loads(plan_dumps(plan)) == plan
    assert plan_of(here).lora is None


def test_targets_are_taken_once_and_in_one_order_and_the_adapter_is_placed(here: Path) -> None:
    plan = plan_of(here, "lora.rank=2", "lora.alpha=3", 'lora.targets=["v_proj", "q_proj", "v_proj"]', "lora.adapter=a")
    assert plan.lora == LoraPlan(rank=2, alpha=3.0, targets=("q_proj", "v_proj"), dropout=0.0, adapter=str(here / "a"))


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["lora.alpha=8"], "lora.rank", "missing"),
        (["lora.rank=8", 'lora.targets=["q_prj"]'], "lora.targets", "unknown target 'q_prj'"),
        (["lora.rank=8", "lora.targets=[]"], "lora.targets", "nothing to train"),
        (["lora.rank=8", 'lora.targets=["lm_head"]'], "lora.targets", "unknown target 'lm_head'"),
        (["lora.rank=0"], "lora.rank", "at least 1"),
        (["lora.rank=8", "lora.dropout=1.0"], "lora.dropout", "below 1"),
        (["lora.rank=8", "lora.adapter=hf://x/y"], "lora.adapter", "can't be used here"),
    ],
)
def test_table_that_makes_no_sense_is_refused_by_its_key(overrides, key: str, message: str, here: Path) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        plan_of(here, *overrides)
    assert caught.value.where is not None
    assert caught.value.where.key == key


def test_lora_without_a_source_is_refused(make_plan) -> None:
    with pytest.raises(RecipeError, match="adapters are trained beside the weights of a folder"):
        make_plan("lora.rank=8")


def test_empty_table_is_no_silent_training_of_all_weights(here: Path) -> None:
    file = here / "r.toml"
    file.write_text(
        'kind = "train"\n[slice]\naccelerator = "v6e"\ntopology = "2x2"\n[run]\nname = "r"\n[model]\nsource = "tiny"\n'
        '[lora]\n[data]\nuri = "d"\n[train]\nsteps = 5\nglobal_batch = 8\nsequence_length = 128\n'
    )
    from tpuctl.plan.resolve import resolve

    recipe = load_recipe(file)
    with pytest.raises(RecipeError, match="missing, and there is no adapter without one") as caught:
        resolve(recipe, environ={}, cwd=here, source=read_source(recipe, environ={}, cwd=here))
    assert caught.value.where is not None
    assert caught.value.where.line == 9


def test_families_that_fuse_their_matrices_are_refused(here: Path) -> None:
    (here / "tiny" / "config.json").write_text(json.dumps(CONFIG | {"model_type": "phi3"}))
    with pytest.raises(RecipeError, match="phi3 keeps several projections in one matrix"):
        plan_of(here, "lora.rank=8")


def test_budget_of_adapters_has_frozen_weights_once_and_moments_of_adapters_only(here: Path) -> None:
    plan, whole = plan_of(here, "lora.rank=8"), plan_of(here)
    weights = num_parameters(plan.model)
    adapters = 3 * 8 * sum((32 + 32, 32 + 16, 32 + 16, 32 + 32, 32 + 48, 32 + 48, 32 + 48))
    assert (plan.budget.parameters, plan.budget.trained) == (weights + adapters, adapters)
    assert (whole.budget.parameters, whole.budget.trained) == (weights, weights)
    assert plan.budget.state_bytes == weights // 4 * 2 + adapters * 12
    assert plan.budget.gradient_bytes == adapters * (4 + 2)
    text = describe(plan)
    assert f"{adapters:,} of them trained" in text
    assert "frozen" in text


def test_budget_of_a_large_model_shrinks_by_what_is_not_trained(make_plan) -> None:
    plan = make_plan("model.preset=llama3-8b", "slice.topology=4x4", "train.global_batch=16", "train.remat=full")
    work = Workload(model=plan.model, mesh=plan.mesh, train=plan.train, hbm_bytes=plan.budget.hbm_bytes)
    lora = LoraPlan(rank=16, alpha=16.0, targets=tuple(TARGETS), dropout=0.0, adapter=None)
    full, adapted = estimate(work, "full"), estimate(replace(work, lora=lora), "full")
    assert adapted.trained == pytest.approx(41.9e6, rel=0.01)  # what PEFT counts for this model at rank 16
    assert adapted.state_bytes < full.state_bytes / 3
    assert adapted.needed_bytes < full.needed_bytes
