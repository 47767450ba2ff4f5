from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_training import make_plan
from tests.fakes.toy_training import BIG_INTEGER, Toy, ToyFeed, ToyState, make_mesh, toy_program
from tpuctl.errors import CheckpointError
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.program import Program
from tpuctl.train.provenance import Provenance, Written, check_model, from_record, provenance_of, to_record

MODEL = Provenance(model={"num_layers": 2, "rope_theta": 10_000.0}, compute_dtype="bfloat16", job="job-1")


def open_checkpoints(directory: Path, provenance: Provenance = MODEL, **options: Any) -> Checkpoints:
    return Checkpoints(str(directory), provenance=provenance, **{"keep": 3, **options})


def trained(program: Program, state: Any, steps: int) -> Any:
    batches = ToyFeed(range(8)).train(np.asarray(state.cursor))
    for _ in range(steps):
        state, _ = program.train_step(state, program.assemble(next(batches), False))
    return state


def save_all(checkpoints: Checkpoints, state: Any, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, state)
    checkpoints.close()


def assert_equal_states(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def program() -> Program:
    return toy_program(make_mesh(jax.devices()[:4]))


@pytest.fixture(scope="module")
def state(program: Program) -> ToyState:
    # Never given to a train step, so never donated: tests may share it.
    return program.init()


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_restore_onto_other_devices_gives_the_same_state_without_warnings(
    devices: int, program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = trained(program, program.init(), 3)
    checkpoints = open_checkpoints(tmp_path)
    save_all(checkpoints, saved, 3)
    target = toy_program(make_mesh(jax.devices()[:devices]))

    other = open_checkpoints(tmp_path)
    restored = other.restore(3, target.abstract_state)

    assert_equal_states(restored, saved)
    for leaf, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(target.abstract_state), strict=True):
        assert leaf.sharding == wanted.sharding
    assert int(restored.params["steps_seen"]) == BIG_INTEGER + 3
    assert other.take_notes() == []
    # Clients of tests with buckets live on in this process and speak up at any time; what is meant here is Orbax.
    told = [record for record in caplog.records if not record.name.startswith("google.")]
    assert [record.message for record in told if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_restore_then_train_equals_the_unbroken_run(impl: str, tmp_path: Path) -> None:
    program = toy_program(make_mesh(jax.devices()[:4]), Toy(key_impl=impl, dropout=0.5))
    unbroken = trained(program, program.init(), 6)
    checkpoints = open_checkpoints(tmp_path)
    save_all(checkpoints, trained(program, program.init(), 3), 3)

    resumed = trained(program, open_checkpoints(tmp_path).restore(3, program.abstract_state), 3)

    assert_equal_states(resumed, unbroken)


def test_save_then_donated_steps_leaves_the_saved_values(program: Program, tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    state = trained(program, program.init(), 2)
    kept = jax.tree.map(jnp.copy, state)

    checkpoints.save(2, state)
    trained(program, state, 5)
    checkpoints.wait()

    assert_equal_states(checkpoints.restore(2, program.abstract_state), kept)


def test_latest_after_unfinished_saves_is_the_newest_complete(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 5)
    shutil.copytree(tmp_path / "5", tmp_path / "10.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "5", tmp_path / "15")
    (tmp_path / "15" / "commit_success.txt").unlink()
    (tmp_path / "notes").mkdir()
    checkpoints = open_checkpoints(tmp_path)

    assert checkpoints.choose("auto") == 5

    unfinished, unmarked = checkpoints.take_notes()
    assert "10.orbax-checkpoint-tmp: its save never finished" in unfinished
    assert f"create the file {tmp_path}/15/commit_success.txt" in unmarked


@pytest.mark.parametrize("name", ["10", "10.orbax-checkpoint-tmp"])
def test_save_where_a_killed_save_left_its_directory_is_done_again(
    name: str, program: Program, state: ToyState, tmp_path: Path
) -> None:
    save_all(open_checkpoints(tmp_path), state, 5)
    (tmp_path / name / "d").mkdir(parents=True)
    (tmp_path / name / "_CHECKPOINT_METADATA").write_text('{"init_timestamp_nsecs": 1}')
    checkpoints = open_checkpoints(tmp_path)
    assert checkpoints.choose("auto") == 5

    save_all(checkpoints, state, 10)

    assert checkpoints.steps() == [5, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "5"]
    assert_equal_states(open_checkpoints(tmp_path).restore(10, program.abstract_state), state)


def test_save_where_a_copy_without_marker_lies_moves_it_aside(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 5, 10)
    (tmp_path / "10" / "commit_success.txt").unlink()
    checkpoints = open_checkpoints(tmp_path)

    save_all(checkpoints, state, 10)

    assert checkpoints.steps() == [5, 10]
    assert (tmp_path / "10.no-marker-1" / "manifest.ocdbt").exists()
    assert "10.no-marker-1" in checkpoints.take_notes()[-1]


def test_copy_without_marker_is_resumed_from_once_it_is_marked(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path / "a"), state, 5)
    shutil.copytree(tmp_path / "a" / "5", tmp_path / "b" / "5")
    (tmp_path / "b" / "5" / "commit_success.txt").unlink()
    assert open_checkpoints(tmp_path / "b").choose("auto") is None
    (tmp_path / "b" / "5" / "commit_success.txt").touch()

    assert open_checkpoints(tmp_path / "b").choose("must") == 5


def test_keep_counts_steps_as_numbers(state: ToyState, tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path, keep=2)

    save_all(checkpoints, state, 5, 10, 20, 100)

    assert checkpoints.steps() == [20, 100]
    assert checkpoints.latest() == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100", "20"]


def test_keep_best_protects_the_best_and_the_latest(state: ToyState, tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path, keep=1, keep_best=True)
    for step, loss in [(1, 0.1), (2, 0.5), (3, 0.6)]:
        checkpoints.save(step, state, eval_loss=loss)
    checkpoints.wait()

    assert checkpoints.steps() == [1, 3]
    assert (checkpoints.best(), checkpoints.latest()) == (1, 3)


def test_save_of_the_same_step_again_does_nothing(state: ToyState, tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)

    checkpoints.save(4, state, kind="periodic")
    checkpoints.save(4, state, kind="final")
    checkpoints.wait()

    assert [(saved.step, saved.kind) for saved in checkpoints.poll()] == [(4, "periodic")]
    assert checkpoints.poll() == []


def test_failed_background_save_is_raised_at_the_next_check(
    state: ToyState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import orbax.checkpoint._src.path.atomicity as atomicity

    checkpoints = open_checkpoints(tmp_path)
    failed = threading.Event()

    async def full_disk(*_: Any, **__: Any) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomicity, "on_commit_callback", full_disk)
    checkpoints.save(1, state)
    assert failed.wait(30)
    checkpoints._finishing.join()

    with pytest.raises(CheckpointError, match=r"step 1 failed in the background.*No space left on device"):
        checkpoints.poll()
    assert checkpoints.latest() is None


def test_save_returns_before_the_store_has_committed(
    state: ToyState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import orbax.checkpoint._src.path.atomicity as atomicity

    commit, store_answers = atomicity.on_commit_callback, threading.Event()

    async def slow_store(*arguments: Any, **options: Any) -> None:
        assert store_answers.wait(30)
        await commit(*arguments, **options)

    monkeypatch.setattr(atomicity, "on_commit_callback", slow_store)
    checkpoints = open_checkpoints(tmp_path)

    checkpoints.save(1, state)

    assert (checkpoints.poll(), checkpoints.steps()) == ([], [])
    store_answers.set()
    checkpoints.close()
    [saved] = checkpoints.poll()
    assert saved.step == 1
    assert saved.blocked_seconds > 0


def test_save_over_a_complete_step_is_refused(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 5)

    with pytest.raises(CheckpointError, match="is there already"):
        open_checkpoints(tmp_path).save(5, state)

    assert open_checkpoints(tmp_path).latest() == 5


def test_close_waits_for_the_save_under_way(state: ToyState, tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(1, state)

    checkpoints.close()

    assert (tmp_path / "1" / "commit_success.txt").exists()


def test_choose_in_a_new_directory_follows_the_rule(tmp_path: Path) -> None:
    assert open_checkpoints(tmp_path / "new").choose("auto") is None
    assert open_checkpoints(tmp_path / "new").choose("never") is None
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        open_checkpoints(tmp_path / "new").choose("must")
    assert not (tmp_path / "new").exists()


def test_choose_never_refuses_checkpoints_of_another_job(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 7)
    stranger = Provenance(model=MODEL.model, compute_dtype="bfloat16", job="job-2")

    with pytest.raises(CheckpointError, match=r'resume = "never", but .* up to step 7') as refusal:
        open_checkpoints(tmp_path, stranger).choose("never")

    assert "new run.directory" in (refusal.value.hint or "")
    assert (tmp_path / "7").exists()


def test_choose_never_lets_a_retry_of_the_same_job_go_on(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 7)

    assert open_checkpoints(tmp_path).choose("never") == 7


def test_restore_into_another_dtype_is_refused_by_name(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    target = toy_program(make_mesh(jax.devices()[:4]), Toy(param_dtype=jnp.bfloat16))

    with pytest.raises(CheckpointError, match=r"params/embedding: float32\[32,8\] in the checkpoint, bfloat16\[32,8\]"):
        open_checkpoints(tmp_path).restore(1, target.abstract_state)


def test_restore_into_another_shape_is_refused_by_name(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    target = toy_program(make_mesh(jax.devices()[:4]), Toy(rows=16))

    with pytest.raises(CheckpointError, match=r"cursor: int32\[8,4\] in the checkpoint, int32\[16,4\] wanted"):
        open_checkpoints(tmp_path).restore(1, target.abstract_state)


def test_restore_into_another_key_type_is_refused_by_name(state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    target = toy_program(make_mesh(jax.devices()[:4]), Toy(key_impl="rbg"))

    with pytest.raises(CheckpointError, match=r"key: key<fry>\[\] in the checkpoint, key<rbg>\[\] wanted"):
        open_checkpoints(tmp_path).restore(1, target.abstract_state)


def test_restore_into_renamed_and_added_subtrees_names_both_sides_and_the_layout(
    state: ToyState, tmp_path: Path
) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    target = toy_program(make_mesh(jax.devices()[:4]), Toy(rename_embedding="embed", extra_params=("ema",)))

    with pytest.raises(CheckpointError) as refusal:
        open_checkpoints(tmp_path).restore(1, target.abstract_state)

    assert "(layout 1)" in refusal.value.message
    assert "missing from the checkpoint: params/ema" in refusal.value.message
    assert "missing from the checkpoint: params/embed;" in refusal.value.message
    assert "only in the checkpoint: params/embedding" in refusal.value.message


def test_provenance_of_a_plan_survives_json_and_an_older_record_without_newer_fields() -> None:
    plan = make_plan()
    wanted = provenance_of(plan)
    written = Written(layout=1, tpuctl_version="0", devices=1, provenance=wanted, key_types={}, eval_loss=None)
    again = from_record(json.loads(json.dumps(to_record(written))), path="run/checkpoints/1")
    check_model(again, wanted, path="run/checkpoints/1")
    older = {name: value for name, value in wanted.model.items() if name not in ("local_layers", "experts", "rope")}
    check_model(replace(again, provenance=replace(wanted, model=older)), wanted, path="run/checkpoints/1")
    local = provenance_of(replace(plan, model=replace(plan.model, local_layers=(0, 2))))
    with pytest.raises(CheckpointError, match=r"model.local_layers: \[\] in the checkpoint, \[0, 2\] in the plan"):
        check_model(again, local, path="run/checkpoints/1")


def test_restore_of_a_model_changed_without_changing_shapes_is_refused(
    program: Program, state: ToyState, tmp_path: Path
) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    changed = Provenance(model={"num_layers": 2, "rope_theta": 5e5}, compute_dtype="bfloat16")

    with pytest.raises(CheckpointError, match=r"model\.rope_theta: 10000\.0 in the checkpoint, 500000\.0 in the plan"):
        open_checkpoints(tmp_path, changed).restore(1, program.abstract_state)


def test_restore_of_a_later_layout_is_refused(program: Program, state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    path = tmp_path / "1" / "_CHECKPOINT_METADATA"
    document = json.loads(path.read_text())
    document["custom_metadata"]["tpuctl"]["layout"] = 99
    path.write_text(json.dumps(document))

    with pytest.raises(CheckpointError, match="has checkpoint layout 99"):
        open_checkpoints(tmp_path).restore(1, program.abstract_state)


def test_restore_of_damaged_files_says_which_checkpoint(program: Program, state: ToyState, tmp_path: Path) -> None:
    save_all(open_checkpoints(tmp_path), state, 1)
    (tmp_path / "1" / "_METADATA").write_bytes(b"")

    with pytest.raises(CheckpointError, match=f"{tmp_path}/1 can't be read"):
        open_checkpoints(tmp_path).restore(1, program.abstract_state)


def test_restore_after_the_data_changed_goes_on_with_a_note(program: Program, state: ToyState, tmp_path: Path) -> None:
    before = Provenance(model=MODEL.model, compute_dtype="bfloat16", dataset="a")
    after = Provenance(model=MODEL.model, compute_dtype="float32", dataset="b")
    save_all(open_checkpoints(tmp_path, before), state, 1)
    checkpoints = open_checkpoints(tmp_path, after)

    checkpoints.restore(1, program.abstract_state)

    assert [note.split(":")[0] for note in checkpoints.take_notes()] == [
        "compute dtype was bfloat16, now float32",
        "the training data changed since the checkpoint was written",
    ]


def test_optimizer_moments_stay_float32(program: Program, tmp_path: Path) -> None:
    saved = trained(program, program.init(), 2)
    checkpoints = open_checkpoints(tmp_path)
    save_all(checkpoints, saved, 2)

    restored = open_checkpoints(tmp_path).restore(2, program.abstract_state)

    assert type(restored.opt_state[0]) is type(program.init().opt_state[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(restored.opt_state[0].nu)} == {jnp.dtype("float32")}
