"""A recipe that names a model folder: read before it is resolved, and alone to say what the model is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.model_folders import CONFIG, SPEC, write_model
from tests.plan.conftest import GOOD
from tpuctl.errors import RecipeError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import TrainingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.text import train_bpe


def plan_of(cwd: Path, *overrides: str) -> TrainingPlan:
    values = GOOD | {"model": {"source": "tiny"}}
    recipe = build_recipe(Source(file="r.toml", values=values, lines={"model.source": 7}), overrides=overrides)
    environ = {"HOME": str(cwd)}
    plan = resolve(recipe, environ=environ, cwd=cwd, source=read_source(recipe, environ=environ, cwd=cwd))
    assert isinstance(plan, TrainingPlan)
    return plan


def test_source_gives_the_plan_its_model_its_weights_and_its_tokenizer(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    train_bpe(["some text"], vocab_size=260, path=tmp_path / "tiny" / "tokenizer.json")
    plan = plan_of(tmp_path)
    assert plan.model == replace(SPEC, name="tiny")
    assert plan.weights == WeightsPlan(uri=str(tmp_path / "tiny"), family="llama")
    assert plan.data.tokenizer == str(tmp_path / "tiny")
    assert plan_loads(plan_dumps(plan)) == plan


def test_source_without_a_tokenizer_leaves_bytes_and_a_named_one_wins(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    assert plan_of(tmp_path).data.tokenizer == "bytes"
    (tmp_path / "tiny" / "tokenizer.json").write_text("{}")
    assert plan_of(tmp_path, "data.tokenizer=bpe:300").data.tokenizer == "bpe:300"
    with pytest.raises(RecipeError, match="320 rows are too few for the 9999 ids"):
        plan_of(tmp_path, "data.tokenizer=bpe:9999")


def test_preset_has_no_weights_to_start_from(make_plan) -> None:
    assert make_plan().weights is None


def test_sizes_beside_a_source_are_refused_each_by_name(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    with pytest.raises(RecipeError) as caught:
        plan_of(tmp_path, "model.preset=tiny-1m", "model.num_layers=2")
    assert "model.preset: the model is that of model.source" in caught.value.message
    assert "model.num_layers: the model is that of model.source" in caught.value.message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "has no config.json"),
        (CONFIG | {"model_type": "rwkv"}, "model_type 'rwkv'"),
        (CONFIG | {"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
    ],
)
def test_source_that_is_no_known_model_is_refused_at_its_line(config, message: str, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny", config=config or CONFIG)
    if config is None:
        (tmp_path / "tiny" / "config.json").unlink()
    with pytest.raises(RecipeError, match=message) as caught:
        plan_of(tmp_path)
    assert str(caught.value.where) == "r.toml:7: model.source"


@pytest.mark.parametrize(("place", "message"), [("gs://", "names no bucket"), ("hf://x/y", "can't be used here")])
def test_source_at_a_place_of_another_kind_is_refused(place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        plan_of(tmp_path, f"model.source={place}")
