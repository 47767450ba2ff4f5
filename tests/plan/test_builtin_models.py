"""Plans over built-in models: made without fetching any."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.conftest import GOOD
from tpuctl.errors import RecipeError
from tpuctl.modelspec import PRESETS
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import InferencePlan, Plan, ServingPlan, TrainingPlan
from tpuctl.plan.source import read_source
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source

URI = "builtin:smollm2-135m"
TRAIN = GOOD | {"model": {"source": URI}}
SERVE = {"kind": "serve", "slice": {"accelerator": "v5e", "topology": "1x1"}, "run": {"name": "s"}}
INFER = {
    "kind": "infer",
    "slice": {"accelerator": "v5e", "topology": "1x1"},
    "run": {"name": "i"},
    "data": {"uri": "data"},
    "task": {"kind": "generate", "text_column": "text"},
    "output": {"uri": "out"},
}


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a plan started a process")

    monkeypatch.setattr("subprocess.run", refuse)


def plan_of(values: dict[str, Any], *overrides: str) -> Plan:
    recipe = build_recipe(Source(file="r.toml", values=values, lines={}), overrides=overrides)
    return resolve(recipe, environ={}, cwd="/work", source=read_source(recipe, environ={}, cwd="/work"))


def test_training_starts_from_its_weights_with_its_tokenizer_and_template() -> None:
    plan = plan_of(TRAIN, "data.format=chat")
    assert isinstance(plan, TrainingPlan)
    assert plan.model == PRESETS["smollm2-135m"]
    assert plan.weights == WeightsPlan(uri=URI, family="llama")
    assert plan.data.tokenizer == URI
    assert plan.data.chat is not None


def test_tokenizer_alone_gives_a_preset_its_rows() -> None:
    plan = plan_of(GOOD, f"data.tokenizer={URI}")
    assert isinstance(plan, TrainingPlan)
    assert (plan.weights, plan.data.tokenizer, plan.model.vocab_size) == (None, URI, 49_152)


def test_serving_takes_model_and_tokenizer_of_it() -> None:
    plan = plan_of(SERVE | {"model": {"source": URI}})
    assert isinstance(plan, ServingPlan)
    assert plan.model == PRESETS["smollm2-135m"]
    assert plan.weights == WeightsPlan(uri=URI, family="llama")
    assert (plan.text.tokenizer, plan.endpoint.name) == (URI, "smollm2-135m")
    mixed = plan_of(SERVE | {"model": {"preset": "tiny-1m", "tokenizer": URI}})
    assert isinstance(mixed, ServingPlan)
    assert (mixed.text.tokenizer, mixed.model.vocab_size) == (URI, 49_152)


@pytest.mark.parametrize("task", ["generate", "score"])
def test_inference_leaves_it_to_the_hosts(task: str) -> None:
    plan = plan_of(INFER | {"model": {"source": URI}}, f"task.kind={task}")
    assert isinstance(plan, InferencePlan)
    assert plan.model is not None
    assert plan.model.uri == URI


UNKNOWN = ("builtin:smollm3", "unknown built-in model")
ENCODER = ("builtin:minilm-l6-v2", "is an encoder, and a decoder is needed")


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [(TRAIN, *UNKNOWN), (SERVE, *UNKNOWN), (INFER, *UNKNOWN), (TRAIN, *ENCODER), (INFER, *ENCODER)],
)
def test_model_that_is_not_there_or_of_the_other_kind_is_refused(kind, source: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        plan_of(kind | {"model": {"source": source}})
    assert URI in str(caught.value.hint) + caught.value.message


def test_decoder_gives_no_vectors_and_each_task_is_told_of_the_model_that_fits() -> None:
    with pytest.raises(RecipeError, match="is a decoder, and an encoder is needed"):
        plan_of(INFER | {"model": {"source": URI}}, "task.kind=embed")
    with pytest.raises(RecipeError, match="needs a model") as caught:
        plan_of(INFER)
    assert URI in str(caught.value.hint) + caught.value.message


def test_tokenizer_of_no_built_in_decoder_is_refused() -> None:
    with pytest.raises(RecipeError, match="unknown tokenizer 'builtin:minilm-l6-v2'"):
        plan_of(GOOD, "data.tokenizer=builtin:minilm-l6-v2")
    with pytest.raises(RecipeError, match="unknown tokenizer"):
        plan_of(SERVE | {"model": {"preset": "tiny-1m", "tokenizer": "builtin:x"}})
