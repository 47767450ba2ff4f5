"""What the files of this machine say of a plan: the model folder of batch inference and serving, its weights, paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.model_folders import CONFIG, llama_tensors, write_model
from tests.fakes.tensor_files import write_tensors
from tests.plan.conftest import GOOD
from tests.plan.test_apart import EMBED
from tpuctl.errors import RecipeError
from tpuctl.modelspec.encoder import EncoderSpec, num_encoder_parameters, weight_shapes
from tpuctl.plan.onsite import look_here
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import InferencePlan, Plan, ServingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.text import train_bpe

TINY = {"model": {"source": "tiny"}}
GENERATE: dict[str, Any] = EMBED | TINY | {"task": {"kind": "generate"}}
SERVE = {"kind": "serve", "run": {"name": "r"}, "slice": {"accelerator": "v6e", "topology": "1x1"}} | TINY
TRAIN = GOOD | TINY
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def planned(cwd: Path, values: dict[str, Any], *overrides: str) -> Plan:
    recipe = build_recipe(Source(file="r.toml", values=values, lines={}), overrides=overrides)
    environ = {"HOME": "/home/me"}
    plan = resolve(recipe, environ=environ, cwd=cwd, source=read_source(recipe, environ=environ, cwd=cwd))
    return look_here(plan, recipe, home="/home/me")


def write_encoder(folder: Path, config: dict[str, Any] = BERT) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = weight_shapes(EncoderSpec.of_config(config))
    write_tensors(folder / "model.safetensors", {name: np.zeros(shape, np.float32) for name, shape in shapes})


def test_plan_of_a_decoder_decides_its_length_and_counts_its_weights(tmp_path: Path) -> None:
    tensors = write_model(tmp_path / "tiny")
    plan = planned(tmp_path, GENERATE)
    assert isinstance(plan, InferencePlan)
    assert plan.model is not None
    assert (plan.task.max_length, plan.model.parameters) == (256, sum(values.size for values in tensors.values()))
    assert plan_loads(plan_dumps(plan)) == plan


def test_plan_of_an_encoder_decides_the_length_it_was_made_for(tmp_path: Path) -> None:
    write_encoder(tmp_path / "tiny")
    plan = planned(tmp_path, EMBED | TINY)
    assert isinstance(plan, InferencePlan)
    assert plan.model is not None
    assert (plan.task.max_length, plan.model.parameters) == (64, num_encoder_parameters(EncoderSpec.of_config(BERT)))
    (tmp_path / "tiny" / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    assert planned(tmp_path, EMBED | TINY).task.max_length == 32


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("task.max_length=257", "task.max_length", "257 tokens, and the model knows 256 positions"),
        ("sampling.max_tokens=256", "sampling.max_tokens", "leave no room for a prompt"),
        ("task.kind=embed", "model.source", r"is no encoder \('llama'\), and embed needs one"),
        ("model.source=encoder", "model.source", r"is an encoder \(bert\), which does not generate"),
        ("model.source=nowhere", "model.source", "no model folder"),
    ],
)
def test_task_that_its_model_does_not_do_is_refused(override: str, key: str, words: str, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    write_encoder(tmp_path / "encoder")
    with pytest.raises(RecipeError, match=words) as caught:
        planned(tmp_path, GENERATE, override)
    assert caught.value.where.key == key


def test_answers_that_leave_no_room_and_choices_named_twice_need_no_folder_to_be_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="leave no room"):
        planned(tmp_path, GENERATE, "task.max_length=64", "sampling.max_tokens=64")
    with pytest.raises(RecipeError, match="'a' is there twice"):
        planned(tmp_path, EMBED | {"task": {"kind": "classify", "choices": ["a", "b", "a"]}})


@pytest.mark.parametrize("values", [GENERATE, SERVE, TRAIN], ids=["infer", "serve", "train"])
def test_name_on_a_hub_is_told_that_none_is_contacted(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        planned(tmp_path, values | {"model": {"source": "HuggingFaceTB/SmolLM2-135M"}})
    assert "no hub is contacted" in str(caught.value.hint)


@pytest.mark.parametrize("values", [GENERATE, SERVE, TRAIN], ids=["infer", "serve", "train"])
def test_run_directory_is_told_what_makes_a_model_folder_of_it(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    with pytest.raises(RecipeError) as caught:
        planned(tmp_path, values | {"model": {"source": "runs/mine"}})
    remedy = "name it in model.checkpoint" if values is SERVE else "tpuctl export runs/mine FOLDER"
    assert remedy in str(caught.value.hint)


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _rewrite(folder: Path, **changes: int) -> None:
    write_tensors(folder / "model.safetensors", llama_tensors(CONFIG | changes))


@pytest.mark.parametrize("values", [GENERATE, SERVE, TRAIN], ids=["infer", "serve", "train"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: _rewrite(folder, vocab_size=64), "embedding of 64×32, and config.json tells of 320×32"),
        (lambda folder: _rewrite(folder, hidden_size=16), "embedding of 320×16"),
        (lambda folder: _rewrite(folder, num_hidden_layers=2), "2 layers, and config.json tells of 3"),
        (lambda folder: _rewrite(folder, num_hidden_layers=5), "5 layers, and config.json tells of 3"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (_cut, "model.safetensors"),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_refused(values, spoil, words, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    spoil(tmp_path / "tiny")
    with pytest.raises(RecipeError, match=words) as caught:
        planned(tmp_path, values)
    assert caught.value.where.key == "model.source"


@pytest.mark.parametrize("values", [GENERATE, SERVE], ids=["infer", "serve"])
@pytest.mark.parametrize("text", ["garbage", "[]", "{}", '{"model": {"vocab": {}}}', "\x00"])
def test_tokenizer_that_is_none_is_refused(values: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text(text)
    with pytest.raises(RecipeError, match=r"tokenizer\.json"):
        planned(tmp_path, values)


def test_files_of_serving_that_are_not_here_are_noted(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    train_bpe(["some text"], vocab_size=260, path=tmp_path / "tiny" / "tokenizer.json")
    (tmp_path / "keys").write_text("key")
    plan = planned(tmp_path, SERVE, "serve.api_key_file=keys")
    assert isinstance(plan, ServingPlan)
    assert not plan.notes
    absent = ["serve.api_key_file=gone", "model.chat_template=gone.jinja", "model.tokenizer=gone.json"]
    notes = planned(tmp_path, SERVE, *absent).notes
    assert [note.split(":")[0] for note in notes] == [
        "model.tokenizer",
        "model.chat_template",
        "serve.api_key_file",
    ]


def test_training_rows_longer_than_the_model_knows_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    assert planned(tmp_path, TRAIN, "train.sequence_length=256")
    with pytest.raises(RecipeError, match="257 tokens are more than the 256 positions") as caught:
        planned(tmp_path, TRAIN, "train.sequence_length=257")
    assert caught.value.where.key == "train.sequence_length"


def test_built_in_encoder_decides_without_a_file(tmp_path: Path) -> None:
    plan = planned(tmp_path, EMBED | {"model": {"source": "builtin:minilm-l6-v2"}})
    assert isinstance(plan, InferencePlan)
    assert plan.model is not None
    assert (plan.task.max_length, plan.model.parameters) == (256, 22_565_376)
