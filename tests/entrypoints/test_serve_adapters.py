"""Adapters from their folders to where the engine has them, and what keeps one from being served."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.fakes.adapter_folders import LORAS, write_adapter_folder
from tests.fakes.model_folders import SPEC, write_model
from tests.fakes.tensor_files import write_tensors
from tests.nn.test_peft import tensors_of
from tpuctl.entrypoints.local_model import LocalModel
from tpuctl.entrypoints.serve_adapters import held_adapters, load_adapters
from tpuctl.errors import WeightsError
from tpuctl.mesh import create_mesh
from tpuctl.nn.peft import Adapted, read_adapter
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

RECIPE = """
kind = "serve"
[slice]
accelerator = "v5e"
topology = "2x2"
[model]
source = "tiny"
[serve.adapters]
poet = "poet"
clerk = "clerk"
[engine]
dtype = "float32"
"""


@pytest.fixture
def plan(tmp_path: Path) -> ServingPlan:
    write_model(tmp_path / "tiny")
    for name in LORAS:
        write_adapter_folder(tmp_path / name, name)
    (tmp_path / "endpoint.toml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "endpoint.toml")
    found = resolve(loaded, environ={}, cwd=tmp_path, source=read_source(loaded, environ={}, cwd=tmp_path))
    assert isinstance(found, ServingPlan)
    return found


def loaded(plan: ServingPlan) -> Any:
    adapters = held_adapters(plan)
    assert adapters is not None
    mesh = create_mesh(plan.mesh, devices=jax.devices()[:4])
    return load_adapters(LocalModel.served(plan), adapters, mesh, tell=lambda *_, **__: None)


def test_adapters_lie_side_by_side_each_scaled_and_split_as_their_projections(plan: ServingPlan) -> None:
    adapters = held_adapters(plan)
    assert adapters is not None
    assert (adapters.names, adapters.ranks) == (("poet", "clerk"), (4, 2))
    assert adapters.targets == ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
    assert adapters.owners.tolist() == [1, 1, 1, 1, 2, 2]
    tree = loaded(plan)["layers"]
    poet = read_adapter(Adapted(spec=SPEC, family="llama", lora=LORAS["poet"]), plan.adapters[0].uri)
    query = tree["attention"]["adapters"]["query"]
    np.testing.assert_array_equal(query["a"][:, :4], poet["layers/attention/adapters/query/a"])
    np.testing.assert_allclose(query["b"][:, :4], 3.0 * poet["layers/attention/adapters/query/b"], rtol=1e-6)
    assert not np.asarray(query["b"][:, 4:]).any(), "the clerk leaves queries as they are"
    assert {shard.data.shape for shard in query["b"].addressable_shards} == {(3, 6, 1, 8)}
    assert {shard.data.shape for shard in tree["mlp"]["adapters"]["down"]["a"].addressable_shards} == {(3, 6, 12)}


def test_plan_without_adapters_gives_the_engine_none(plan: ServingPlan) -> None:
    assert held_adapters(replace(plan, adapters=())) is None


FIRST = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


def short(tensors: dict[str, np.ndarray]) -> None:
    tensors[FIRST] = tensors[FIRST][:16]


def broken(tensors: dict[str, np.ndarray]) -> None:
    tensors[FIRST] = np.full_like(tensors[FIRST], np.nan)


def missing(tensors: dict[str, np.ndarray]) -> None:
    del tensors[FIRST]


def further(tensors: dict[str, np.ndarray]) -> None:
    tensors["base_model.model.lm_head.lora_A.weight"] = np.zeros((4, 32), np.float32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            short,
            r"adapter poet: .*adapter_model.safetensors .*another shape or dtype: .*q_proj.lora_B.weight F32\[16,4\]",
        ),
        (broken, r"adapter poet: .*adapter_model.safetensors: .*layers.1.self_attn.q_proj.lora_B.weight has values"),
        (missing, r"adapter poet: .*adapter_model.safetensors .*missing: .*layers.1.self_attn.q_proj.lora_B.weight"),
        (further, r"adapter poet: .*adapter_model.safetensors .*not of these targets: .*lm_head.lora_A"),
    ],
)
def test_adapter_that_does_not_fit_the_model_is_refused_with_file_and_tensor(
    plan: ServingPlan, damage: Any, message: str
) -> None:
    folder = Path(plan.adapters[0].uri)
    tensors = tensors_of(folder)
    damage(tensors)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    with pytest.raises(WeightsError, match=message) as refused:
        loaded(plan)
    assert refused.value.hint


def test_adapter_that_has_changed_since_it_was_planned_is_refused(plan: ServingPlan) -> None:
    shutil.copytree(plan.adapters[1].uri, plan.adapters[0].uri, dirs_exist_ok=True)
    with pytest.raises(WeightsError, match=r"adapter poet: .* is another adapter: lora.rank = 4 .* r = 2"):
        loaded(plan)
