"""A model folder trained from, saved and exported: what comes out is what went in, or what training made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.model_folders import SPEC, write_model
from tests.fakes.tiny_training import make_batch, make_plan
from tpuctl.cli.app import run
from tpuctl.entrypoints.export import Request, export
from tpuctl.entrypoints.serve_checkpoint import exported_checkpoint
from tpuctl.entrypoints.weights import starting_weights
from tpuctl.errors import CheckpointError, RecipeError, UsageError, WeightsError
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import open_weights
from tpuctl.nn.weights_leaves import DTYPES
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import Plan, ServingPlan, TrainingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.runs.record import Attempt, begin_attempt
from tpuctl.storage import open_storage
from tpuctl.text import ByteTokenizer
from tpuctl.text.place import TokenizerRef
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.program import program_for
from tpuctl.train.provenance import provenance_of


def plan_from(folder: Path, directory: Path, *, source: bool = True) -> TrainingPlan:
    """A plan on eight devices that starts from a model folder."""
    plan = make_plan(model=SPEC, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    weights = WeightsPlan(uri=str(folder), family="llama") if source else None
    return replace(plan, weights=weights, run=replace(plan.run, directory=str(directory)))


def save(plan: TrainingPlan, *, steps: int = 0) -> None:
    """Train so many steps and save, as a run does."""
    program = program_for(plan, create_mesh(plan.mesh))
    state = program.init()
    for seed in range(steps):
        state, _ = program.train_step(state, program.assemble(make_batch(vocab=320, seed=seed), False))
    begin_attempt(plan, Attempt(number=1, submission_id="job", cluster="", tpuctl_version="0", started=0.0))
    provenance = provenance_of(plan, weights=starting_weights(plan))
    checkpoints = Checkpoints(f"{plan.run.directory}/checkpoints", provenance=provenance, keep=1)
    checkpoints.save(steps, program.kept(state))
    checkpoints.close()


def stored(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for name, tensor in open_weights(str(folder)).tensors.items():
        data = Path(tensor.file).read_bytes()[tensor.start : tensor.end]
        found[name] = np.frombuffer(data, DTYPES[tensor.dtype]).reshape(tensor.shape)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that started from a folder and saved before its first step, and what the folder held."""
    root = tmp_path_factory.mktemp("run")
    tensors = write_model(root / "model")
    save(plan_from(root / "model", root / "run"))
    return {"root": root, "tensors": tensors}


def test_folder_loaded_saved_and_exported_is_the_same_bit_for_bit(trained: dict[str, Any], tmp_path: Path) -> None:
    root = trained["root"]
    exported = export(Request(run=str(root / "run"), step=None, folder=str(tmp_path / "out"), dtype="float32"))
    assert (exported.step, exported.family, exported.files) == (0, "llama", ("model.safetensors",))
    after = stored(tmp_path / "out")
    assert after.keys() == trained["tensors"].keys()
    for name, values in trained["tensors"].items():
        np.testing.assert_array_equal(after[name], values)
    before = json.loads((root / "model" / "config.json").read_text())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == before | {"torch_dtype": "float32"}


def test_export_into_a_bucket_is_what_a_local_one_is(trained: dict[str, Any], tmp_path: Path, gcs: Emulator) -> None:
    run_directory, bucket = str(trained["root"] / "run"), "gs://tpu-test/out"
    export(Request(run=run_directory, step=None, folder=str(tmp_path / "out"), dtype="float32"))
    export(Request(run=run_directory, step=None, folder=bucket, dtype="float32"))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert list(open_storage(bucket).list(bucket)) == [f"{bucket}/{name}" for name in names]
    for name in names:
        assert open_storage(bucket).read(f"{bucket}/{name}").data == (tmp_path / "out" / name).read_bytes()


def test_exported_bfloat16_is_the_checkpoint_rounded(trained: dict[str, Any], tmp_path: Path) -> None:
    export(Request(run=str(trained["root"] / "run"), step=0, folder=str(tmp_path / "out"), dtype="bfloat16"))
    for name, values in stored(tmp_path / "out").items():
        np.testing.assert_array_equal(values, trained["tensors"][name].astype(DTYPES["BF16"]))


def test_training_from_a_folder_moves_its_weights_and_leaves_the_folder_alone(tmp_path: Path) -> None:
    tensors = write_model(tmp_path / "model")
    save(plan_from(tmp_path / "model", tmp_path / "run"), steps=2)
    export(Request(run=str(tmp_path / "run"), step=2, folder=str(tmp_path / "out"), dtype="float32"))
    moved = stored(tmp_path / "out")
    for name, values in tensors.items():
        change = np.abs(moved[name] - values).max()
        assert 0 < change < 0.1, f"{name}: two steps at a learning rate of 0.01"
    for name, values in stored(tmp_path / "model").items():
        np.testing.assert_array_equal(values, tensors[name])


def test_run_from_scratch_is_exported_with_a_config_and_byte_tokenizer_of_ours(tmp_path: Path) -> None:
    save(plan_from(tmp_path, tmp_path / "run", source=False))
    export(Request(run=str(tmp_path / "run"), step=None, folder=str(tmp_path / "out"), dtype="float32"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["eos_token_id"]) == ("llama", 32, 256)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ours = ByteTokenizer()
    for text in ("Plain words.", "naïve — 漢字 🙂", "\x00\n\t  spaces  ", "".join(map(chr, range(256)))):
        ids = theirs.encode(text).ids
        assert ids == ours.encode(text).ids.tolist()
        assert theirs.decode(ids) == text
    assert theirs.token_to_id("<|endoftext|>") == ours.separator_id


def test_export_says_what_is_missing(trained: dict[str, Any], tmp_path: Path) -> None:
    run_directory = str(trained["root"] / "run")
    with pytest.raises(UsageError, match=r"no run directory: it has no run\.json"):
        export(Request(run=str(tmp_path), step=None, folder=str(tmp_path / "out"), dtype="float32"))
    with pytest.raises(CheckpointError, match="no complete checkpoint of step 7"):
        export(Request(run=run_directory, step=7, folder=str(tmp_path / "out"), dtype="float32"))
    with pytest.raises(UsageError, match="is not empty"):
        export(Request(run=run_directory, step=0, folder=str(trained["root"] / "model"), dtype="float32"))


def test_export_verb_answers_in_json_from_a_process_of_its_own(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory, out = str(trained["root"] / "run"), str(tmp_path / "out")
    assert run(["export", f"{run_directory}@0", out, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["step"], document["tensors"]) == ("tpuctl.export/1", 0, 29)
    assert run(["export", f"{run_directory}@9", str(tmp_path / "other"), "-o", "json"]) == 1
    assert "no complete checkpoint of step 9" in json.loads(capsys.readouterr().out)["message"]


def test_weights_are_looked_at_before_a_new_run_and_not_before_a_resumed_one(
    trained: dict[str, Any], tmp_path: Path
) -> None:
    root = trained["root"]
    plan = plan_from(root / "model", tmp_path / "new")
    assert len(starting_weights(plan)) == 32
    assert starting_weights(replace(plan, weights=None)) == ""
    gone = plan_from(tmp_path / "gone", root / "run")
    assert starting_weights(gone) == "", "the run has a checkpoint"
    with pytest.raises(WeightsError, match="no such folder"):
        starting_weights(plan_from(tmp_path / "gone", tmp_path / "new"))
    with pytest.raises(WeightsError, match="tensors missing"):
        starting_weights(replace(plan, model=replace(SPEC, num_layers=4)))


def test_resumed_run_keeps_where_its_weights_came_from(trained: dict[str, Any]) -> None:
    plan = plan_from(trained["root"] / "gone", trained["root"] / "run")
    program = program_for(plan, create_mesh(plan.mesh))
    checkpoints = Checkpoints(f"{plan.run.directory}/checkpoints", provenance=provenance_of(plan), keep=2)
    state = checkpoints.restore(0, program.abstract_state)
    checkpoints.save(1, state)
    checkpoints.close()
    written = json.loads((Path(plan.run.directory) / "checkpoints" / "1" / "_CHECKPOINT_METADATA").read_text())
    provenance = written["custom_metadata"]["tpuctl"]["provenance"]
    assert provenance["source"] == str(trained["root"] / "model")
    assert len(provenance["weights"]) == 32
    assert jax.tree.leaves(state.params)


SERVE = {"kind": "serve", "slice": {"accelerator": "v5e", "topology": "1x1"}, "run": {"name": "endpoint"}}


def served_plan(checkpoint: str, cwd: Path) -> Plan:
    recipe = build_recipe(Source(file="r.toml", values={**SERVE, "model": {"checkpoint": checkpoint}}, lines={}))
    return resolve(recipe, environ={}, cwd=cwd, source=read_source(recipe, environ={}, cwd=cwd))


def test_checkpoint_that_is_served_is_a_folder_while_it_is_loaded(trained: dict[str, Any], tmp_path: Path) -> None:
    plan = served_plan(f"{trained['root']}/run@0", tmp_path)
    assert isinstance(plan, ServingPlan)
    assert plan_loads(plan_dumps(plan)) == plan
    assert (plan.model.name, plan.weights) == (SPEC.name, None)
    plan = replace(plan, engine=replace(plan.engine, dtype="float32"))
    told: list[str] = []
    with exported_checkpoint(plan, tell=lambda phase, **_: told.append(phase)) as found:
        assert found.weights is not None
        assert found.text.tokenizer == found.weights.uri
        after = stored(Path(found.weights.uri))
        ref = TokenizerRef(name=found.text.tokenizer, directory=str(tmp_path), vocab_size=plan.model.vocab_size)
        assert ref.load().parse("a<|endoftext|>").ids.tolist() == [97, 256]
    assert told == ["exported"]
    assert not Path(found.weights.uri).exists()
    for name, values in trained["tensors"].items():
        np.testing.assert_array_equal(after[name], values)


def test_checkpoint_that_is_not_there_is_refused_with_those_that_are(trained: dict[str, Any], tmp_path: Path) -> None:
    plan = served_plan(f"{trained['root']}/run@7", tmp_path)
    assert isinstance(plan, ServingPlan)
    with (
        pytest.raises(WeightsError, match="no complete checkpoint of step 7") as caught,
        exported_checkpoint(plan, tell=print),
    ):
        raise AssertionError("nothing was exported")
    assert str(caught.value.hint).startswith("there are 0")  # and what the tests before have saved


def test_checkpoint_of_no_run_is_refused_in_the_recipe(trained: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is no run directory") as caught:
        served_plan(str(trained["root"] / "model"), tmp_path)
    assert caught.value.where is not None
    assert caught.value.where.key == "model.checkpoint"
