"""The shipped fine-tuning recipes, as a user types them: conversations, adapters or all weights, resumed, exported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.command import Command, Done
from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.tensor_files import write_tensors
from tpuctl.runs.record import read_metrics
from tpuctl.safetensors import read_tensor_file
from tpuctl.text.bpe import train_bpe

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPES = Path(__file__).parents[2] / "recipes"
MODEL = os.environ.get("TPUCTL_TEST_MODEL", "")
SMALL = ("slice.topology=2x2", "train.global_batch=8", "train.sequence_length=128", "train.log_every=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template of its own."""
    folder = tmp_path_factory.mktemp("tiny-chat")
    tensors = write_model(folder, config=CONFIG | {"bos_token_id": 0, "eos_token_id": 0})
    # Its head is frozen beneath adapters: with rows as small as they are drawn no logit could be moved far.
    tensors["model.embed_tokens.weight"] *= 8
    write_tensors(folder / "model.safetensors", tensors)
    sources = sorted((Path(__file__).parents[2] / "tpuctl" / "text").glob("*.py"))
    train_bpe((path.read_text() for path in sources), vocab_size=300, path=folder / "tokenizer.json")
    template = (RECIPES / "chat.jinja").read_text()
    config = {"eos_token": "<|endoftext|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def train(tpuctl: Command, recipe: str, run: Path, *more: str) -> Done:
    keys = (f"run.directory={run}", *more)
    done = tpuctl("train", RECIPES / recipe, *(word for key in keys for word in ("--set", key)), timeout_seconds=1800)
    assert done.code == 0, done.everything
    return done


def losses(run: Path) -> dict[int, float]:
    return {item["step"]: item["loss"] for item in read_metrics(str(run)) if item["event"] == "step"}


def tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file; they are float32."""
    data = path.read_bytes()
    return {
        name: np.frombuffer(data[tensor.start : tensor.end], np.float32).reshape(tensor.shape)
        for name, tensor in read_tensor_file(str(path)).tensors.items()
    }


def export(tpuctl: Command, run: Path, folder: Path, *more: str) -> Path:
    done = tpuctl("export", run, folder, *more)
    assert done.code == 0, done.everything
    return folder


def test_lora_recipe_learns_resumes_bit_for_bit_and_exports_both_forms(
    tpuctl: Command, model: Path, tmp_path: Path
) -> None:
    keys = (f"model.source={model}", *SMALL, "optim.learning_rate=3e-2", "optim.warmup_steps=4", "optim.decay_steps=36")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = train(tpuctl, "lora.toml", whole, *keys, "train.steps=40")
    train(tpuctl, "lora.toml", broken, *keys, "train.steps=15")
    resumed = train(tpuctl, "lora.toml", broken, *keys, "train.steps=40")
    assert "resuming from step 15" in resumed.out, resumed.everything
    found = losses(whole)
    assert found[40] < found[1] - 0.1, done.everything
    assert losses(broken) == found

    adapters = tensors(export(tpuctl, whole, tmp_path / "peft", "--format", "peft") / "adapter_model.safetensors")
    merged = tensors(export(tpuctl, whole, tmp_path / "hf") / "model.safetensors")
    again = tensors(export(tpuctl, broken, tmp_path / "again", "--format", "peft") / "adapter_model.safetensors")
    assert again.keys() == adapters.keys()
    for name, values in again.items():
        np.testing.assert_array_equal(values, adapters[name])
    for name, weight in tensors(model / "model.safetensors").items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        change = np.zeros_like(weight)
        if "proj" in name:
            change = 2.0 * adapters[f"{path}.lora_B.weight"] @ adapters[f"{path}.lora_A.weight"]
            assert np.abs(change).max() > 0, name
        np.testing.assert_allclose(merged[name], weight + change, atol=1e-6)


def test_chat_recipe_trains_all_weights_and_exports_a_model_with_its_template(
    tpuctl: Command, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    keys = (f"model.source={model}", *SMALL, "train.steps=20", "optim.warmup_steps=2", "optim.learning_rate=1e-2")
    done = train(tpuctl, "chat.toml", run, *keys)
    found = losses(run)
    assert found[20] < found[1] - 0.1, done.everything
    out = export(tpuctl, run, tmp_path / "out")
    assert (out / "tokenizer_config.json").read_text() == (model / "tokenizer_config.json").read_text()
    before, after = tensors(model / "model.safetensors"), tensors(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in before)


@pytest.mark.skipif(not MODEL, reason="TPUCTL_TEST_MODEL is not set; builtin:smollm2-135m is fetched")
@pytest.mark.parametrize(("recipe", "rate"), [("lora.toml", "1e-3"), ("chat.toml", "1e-4")])
def test_shipped_recipe_teaches_the_real_model(recipe: str, rate: str, tpuctl: Command, tmp_path: Path) -> None:
    steps = ("train.steps=8", "optim.warmup_steps=1", f"optim.learning_rate={rate}", "train.log_every=1")
    done = train(tpuctl, recipe, tmp_path / "run", f"model.source={MODEL}", *steps, "train.eval_batches=2")
    found = losses(tmp_path / "run")
    # Whatever the batch, what is said of functions is easier to tell after it has been seen a few times.
    assert sum(found[step] for step in (6, 7, 8)) / 3 < sum(found[step] for step in (1, 2, 3)) / 3, done.everything
    out = export(tpuctl, tmp_path / "run", tmp_path / "out")
    assert (out / "tokenizer_config.json").exists()
