"""Adapters against PEFT: what ``adapters/make.py`` made there, read, computed with and written again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tensor_files import write_tensors
from tpuctl.errors import WeightsError
from tpuctl.mesh import create_mesh, replicated
from tpuctl.modelspec.adapters import FUSED_FAMILIES, TARGETS
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.naming import stored_parameters
from tpuctl.nn.params import ParamTree, bind, joined, logical_axes
from tpuctl.nn.peft import Adapted, read_adapter, write_adapter
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.safetensors import read_tensor_file

ADAPTERS = Path(__file__).parent / "adapters"
MODELS = Path(__file__).parent / "references"
LORAS = {
    "llama": LoraPlan(rank=4, alpha=6.0, targets=tuple(TARGETS), dropout=0.0, adapter=None),
    "qwen3_one_kv_head": LoraPlan(
        rank=3, alpha=12.0, targets=("v_proj", "o_proj", "down_proj"), dropout=0.0, adapter=None
    ),
}


def adapted_model(name: str) -> Adapted:
    config = json.loads((MODELS / name / "config.json").read_text())
    return Adapted(spec=spec_from_config(config), family=config["model_type"], lora=LORAS[name])


def tree_of(arrays: dict[str, np.ndarray]) -> ParamTree:
    tree: ParamTree = {}
    for path, values in arrays.items():
        *parents, leaf = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = jnp.asarray(values)
    return tree


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    file = read_tensor_file(str(folder / "adapter_model.safetensors"))
    data = Path(file.uri).read_bytes()
    return {
        name: np.frombuffer(data[tensor.start : tensor.end], np.float32).reshape(tensor.shape)
        for name, tensor in file.tensors.items()
    }


@pytest.mark.parametrize("name", LORAS)
def test_logits_with_an_adapter_are_those_of_peft(name: str) -> None:
    model = adapted_model(name)
    place = replicated(create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1), devices=jax.devices()[:1]))
    places = jax.tree.map(lambda _: place, logical_axes(model.spec), is_leaf=lambda node: isinstance(node, tuple))
    weights = load_params(
        model.spec, str(MODELS / name), family=model.family, shardings=places, dtype=jnp.float32
    ).params
    adapters = tree_of(read_adapter(model, str(ADAPTERS / name)))
    with np.load(ADAPTERS / name / "logits.npz") as arrays:
        tokens, expected = arrays["tokens"], arrays["logits"]
    rows = TokenRows(
        tokens=jnp.asarray(tokens),
        positions=jnp.arange(tokens.shape[1])[None],
        segment_ids=jnp.ones(tokens.shape, jnp.int32),
    )
    logits = bind(model.spec, joined(adapters, weights), lora=model.lora).logits(rows)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("name", LORAS)
def test_adapter_read_and_written_is_what_peft_wrote(name: str, tmp_path: Path) -> None:
    model = adapted_model(name)
    write_adapter(model, str(tmp_path), base=name, read=read_adapter(model, str(ADAPTERS / name)).__getitem__)
    before, after = tensors_of(ADAPTERS / name), tensors_of(tmp_path)
    assert before.keys() == after.keys()
    for tensor, values in before.items():
        np.testing.assert_array_equal(after[tensor], values)
    theirs, ours = (json.loads((folder / "adapter_config.json").read_text()) for folder in (ADAPTERS / name, tmp_path))
    assert set(theirs.pop("target_modules")) == set(ours.pop("target_modules"))
    assert {key: theirs[key] for key in ours} == ours


def change_config(**changed: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def change_tensors(change: Any) -> Any:
    def rewrite(folder: Path) -> None:
        tensors = dict(tensors_of(folder))
        change(tensors)
        write_tensors(folder / "adapter_model.safetensors", tensors)

    return rewrite


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (change_config(peft_type="IA3"), "adapter of type 'IA3'"),
        (change_config(r=8), r"lora.rank = 4 in the recipe, r = 8 in the adapter"),
        (change_config(lora_alpha=8), "lora.alpha = 6 in the recipe, lora_alpha = 8"),
        (change_config(use_dora=True, bias="all"), "it sets use_dora, bias"),
        (change_config(init_lora_weights="pissa"), "it sets init_lora_weights"),
        (change_tensors(lambda tensors: tensors.pop(FIRST)), f"1 tensors missing: {FIRST}"),
        (
            change_tensors(lambda tensors: tensors.update({FIRST.replace("q_proj", "z_proj"): tensors[FIRST]})),
            "1 tensors not of these targets: .*z_proj",
        ),
        (change_tensors(lambda tensors: tensors.update({FIRST: tensors[FIRST][:, :5]})), r"shape or dtype: .*\[4,5\]"),
    ],
)
def test_adapter_that_does_not_fit_is_refused_in_words(damage: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(ADAPTERS / "llama", folder)
    damage(folder)
    with pytest.raises(WeightsError, match=message):
        read_adapter(adapted_model("llama"), str(folder))


def test_adapter_of_other_targets_is_refused() -> None:
    model = adapted_model("llama")
    with pytest.raises(WeightsError, match="not of these targets"):
        read_adapter(replace(model, lora=replace(model.lora, targets=("q_proj",))), str(ADAPTERS / "llama"))


@pytest.mark.parametrize("folder", sorted(MODELS.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_targets_are_the_names_of_modules_in_all_families_but_those_that_fuse(folder: Path) -> None:
    config = json.loads(folder.read_text())
    stored = stored_parameters(spec_from_config(config), config["model_type"])
    named = all(
        stored[f"layers/{path}"].name.endswith(f".{target}.weight")
        for target, path in TARGETS.items()
        if f"layers/{path}" in stored
    )
    assert named == (config["model_type"] not in FUSED_FAMILIES)
