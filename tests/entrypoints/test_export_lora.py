"""A run with adapters exported: merged into a model folder, or as PEFT's, which another run starts from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.entrypoints.test_export import plan_from, save
from tests.fakes.model_folders import SPEC, llama_tensors, write_model
from tests.fakes.tensor_files import write_tensors
from tests.fakes.tiny_training import make_batch
from tpuctl.cli.app import run
from tpuctl.entrypoints.export import Request, export
from tpuctl.entrypoints.serve_adapters import exported_adapters
from tpuctl.entrypoints.weights import starting_weights
from tpuctl.errors import CheckpointError, UsageError, WeightsError
from tpuctl.mesh import create_mesh
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import bind, param_shardings, split_adapters
from tpuctl.nn.peft import Adapted, read_adapter
from tpuctl.nn.weights import load_params
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan, TrainingPlan
from tpuctl.plan.source import read_source
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.train.checkpoint_arrays import CheckpointArrays
from tpuctl.train.leaves import named_leaves
from tpuctl.train.program import program_for

LORA = LoraPlan(rank=4, alpha=8.0, targets=tuple(TARGETS), dropout=0.0, adapter=None)


def lora_plan(folder: Path, directory: Path, **lora: Any) -> TrainingPlan:
    return replace(plan_from(folder, directory), lora=replace(LORA, **lora))


def logits_of(params: Any, lora: LoraPlan | None) -> np.ndarray:
    batch = make_batch(vocab=320)
    rows = TokenRows(tokens=batch.tokens, positions=batch.positions, segment_ids=batch.segment_ids)
    rows = jax.tree.map(jnp.asarray, rows)
    params = jax.tree.map(jnp.asarray, params)
    return np.asarray(jax.jit(lambda params: bind(SPEC, params, lora=lora).logits(rows))(params))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a model folder and a run with adapters that took three steps from it."""
    root = tmp_path_factory.mktemp("lora")
    write_model(root / "model")
    save(lora_plan(root / "model", root / "run"), steps=3)
    return root


def trained_params(root: Path) -> Any:
    """The run's parameters, put together anew."""
    plan = lora_plan(root / "model", root / "run")
    program = program_for(plan, create_mesh(plan.mesh))
    params = jax.device_get(program.init().params)
    arrays = CheckpointArrays(str(root / "run" / "checkpoints"))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: arrays.read(f"params/{name}") if "adapters" in (name := _name(path)) else leaf, params
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def test_merged_model_has_the_logits_of_the_adapters(trained: Path, tmp_path: Path) -> None:
    export(Request(run=str(trained / "run"), step=None, folder=str(tmp_path / "out"), dtype="float32"))
    plan = plan_from(tmp_path / "out", tmp_path)
    places = param_shardings(plan.model, create_mesh(plan.mesh), lora=plan.lora)
    merged = jax.device_get(
        load_params(SPEC, str(tmp_path / "out"), family="llama", shardings=places, dtype=jnp.float32).params
    )
    params = trained_params(trained)
    with_adapters = logits_of(params, LORA)
    np.testing.assert_allclose(logits_of(merged, None), with_adapters, atol=1e-5)
    assert np.abs(logits_of(split_adapters(params)[1], None) - with_adapters).max() > 1e-2


def test_run_started_from_an_exported_adapter_has_it_bit_for_bit(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "adapter"
    assert run(["export", str(trained / "run"), str(out), "--format", "peft", "--quiet"]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, str(trained / "model"))
    plan = lora_plan(trained / "model", tmp_path / "run", adapter=str(out))
    assert starting_weights(plan)
    begun = split_adapters(jax.device_get(program_for(plan, create_mesh(plan.mesh)).init().params))[0]
    expected = named_leaves(split_adapters(trained_params(trained))[0])
    for name, values in named_leaves(begun).items():
        np.testing.assert_array_equal(values, expected[name])
    with pytest.raises(WeightsError, match=r"lora.rank = 8 in the recipe, r = 4"):
        starting_weights(lora_plan(trained / "model", tmp_path / "run", adapter=str(out), rank=8))


def test_export_in_pefts_form_of_a_run_without_adapters_is_refused(trained: Path, tmp_path: Path) -> None:
    save(plan_from(trained / "model", tmp_path / "run"))
    request = Request(run=str(tmp_path / "run"), step=None, folder=str(tmp_path / "a"), dtype="float32", format="peft")
    with pytest.raises(UsageError, match="has no adapters"):
        export(request)
    with pytest.raises(UsageError, match="written as float32"):
        export(replace(request, run=str(trained / "run"), dtype="bfloat16"))


def test_merging_into_other_weights_than_those_trained_beside_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    save(lora_plan(tmp_path / "model", tmp_path / "run"))
    write_tensors(tmp_path / "model" / "model.safetensors", llama_tensors(seed=1))
    with pytest.raises(CheckpointError, match=r"are not those that .* was trained beside"):
        export(Request(run=str(tmp_path / "run"), step=None, folder=str(tmp_path / "out"), dtype="float32"))


def served_with(trained: Path, cwd: Path) -> ServingPlan:
    """The plan of an endpoint of the model with the run's adapters beside it."""
    values = {
        "kind": "serve",
        "slice": {"accelerator": "v5e", "topology": "1x1"},
        "model": {"source": str(trained / "model")},
        "run": {"name": "endpoint"},
        "serve": {"adapters": {"mine": str(trained / "run")}},
    }
    recipe = build_recipe(Source(file="r.toml", values=values, lines={}))
    plan = resolve(recipe, environ={}, cwd=cwd, source=read_source(recipe, environ={}, cwd=cwd))
    assert isinstance(plan, ServingPlan)
    return plan


def test_run_that_is_served_beside_its_model_is_a_folder_of_pefts_while_it_is_loaded(
    trained: Path, tmp_path: Path
) -> None:
    plan, told = served_with(trained, tmp_path), list[str]()
    with exported_adapters(plan, tell=lambda phase, **_: told.append(phase)) as found:
        (adapter,) = found.adapters
        factors = read_adapter(Adapted(spec=SPEC, family="llama", lora=adapter.lora), adapter.uri)
    assert (told, adapter.is_run, adapter.name) == (["exported"], False, "mine")
    assert not Path(adapter.uri).exists()
    arrays = CheckpointArrays(str(trained / "run" / "checkpoints"))
    for path, values in factors.items():
        np.testing.assert_array_equal(values, arrays.read(f"params/{path}"))


def test_run_trained_beside_other_weights_than_those_served_is_refused(trained: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_tensors(tmp_path / "model" / "model.safetensors", llama_tensors(seed=1))
    request = Request(run=str(trained / "run"), step=None, folder=str(tmp_path / "a"), dtype="float32", format="peft")
    with pytest.raises(CheckpointError, match=r"are not those that .* was trained beside"):
        export(replace(request, beside=str(tmp_path / "model")))
    export(replace(request, beside=str(trained / "model")))
