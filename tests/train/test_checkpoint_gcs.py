"""Checkpoints in a bucket, by Orbax and the three clients it uses there, while the service fails now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from tests.fakes.gcs_process import GcsService
from tests.fakes.toy_training import ToyState, make_mesh, toy_program
from tests.train.test_checkpoint import assert_equal_states, open_checkpoints, save_all, trained
from tpuctl.errors import CheckpointError
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.program import Program

# In the run of slow tests, away from the others: etils keeps the first client of a process, and a test without the
# emulated service may have made it.
pytestmark = pytest.mark.slow

RUN = "gs://tpu-test/run/checkpoints"


@pytest.fixture(scope="module")
def program() -> Program:
    return toy_program(make_mesh(jax.devices()[:4]))


@pytest.fixture(scope="module")
def state(program: Program) -> ToyState:
    return program.init()


def open_bucket(**options: Any) -> Checkpoints:
    return open_checkpoints(RUN, **options)  # type: ignore[arg-type]


def names(gcs: GcsService) -> set[str]:
    """The folders of steps."""
    return {name.split("/")[2] for name in gcs.buckets.of("tpu-test")}


def put_folder(gcs: GcsService, folder: Path, name: str) -> None:
    """Copy a local folder into the bucket, as a user would."""
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"run/checkpoints/{name}/{path.relative_to(folder).as_posix()}"
            gcs.buckets.put("tpu-test", key, path.read_bytes(), query={}, metadata={})


def test_restore_gives_what_was_saved_though_every_seventh_request_fails(program: Program, gcs: GcsService) -> None:
    fault = gcs.fail(every=7, times=4, status=503)
    saved = trained(program, program.init(), 3)
    save_all(open_bucket(), saved, 3)

    other = open_bucket()

    assert other.choose("auto") == 3
    assert_equal_states(other.restore(3, program.abstract_state), saved)
    assert fault.hits == 4


def test_keep_two_of_five_saves_leaves_two_in_numeric_order(program: Program, state: ToyState, gcs: GcsService) -> None:
    save_all(open_bucket(keep=2), state, 5, 10, 20, 95, 100)
    assert names(gcs) == {"95", "100"}
    assert open_bucket().latest() == 100


def test_steps_saved_by_another_process_are_seen_after_a_listing(
    state: ToyState, gcs: GcsService, tmp_path: Path
) -> None:
    reader = open_bucket()
    assert reader.steps() == []
    save_all(open_checkpoints(tmp_path), state, 5)
    put_folder(gcs, tmp_path / "5", "5")
    assert reader.steps() == [5]


def test_unfinished_save_is_passed_over_and_done_again(program: Program, state: ToyState, gcs: GcsService) -> None:
    save_all(open_bucket(), state, 5)
    gcs.buckets.put("tpu-test", "run/checkpoints/10/d/x", b"", query={}, metadata={})
    begun = b'{"init_timestamp_nsecs": 1}'
    gcs.buckets.put("tpu-test", "run/checkpoints/10/_CHECKPOINT_METADATA", begun, query={}, metadata={})
    checkpoints = open_bucket()

    assert checkpoints.choose("auto") == 5
    assert "its save never finished" in checkpoints.take_notes()[0]
    save_all(checkpoints, state, 10)
    assert open_bucket().steps() == [5, 10]


def test_copy_without_its_marker_is_told_and_moved_aside_but_never_deleted(
    state: ToyState, gcs: GcsService, tmp_path: Path
) -> None:
    save_all(open_checkpoints(tmp_path), state, 10)
    (tmp_path / "10" / "commit_success.txt").unlink()
    put_folder(gcs, tmp_path / "10", "10")
    count = len(gcs.buckets.of("tpu-test"))
    checkpoints = open_bucket()

    assert checkpoints.choose("auto") is None
    assert f"create the file {RUN}/10/commit_success.txt" in checkpoints.take_notes()[0]
    save_all(checkpoints, state, 10)

    moved = [name for name in gcs.buckets.of("tpu-test") if name.startswith("run/checkpoints/10.no-marker-1/")]
    assert len(moved) == count
    assert open_bucket().steps() == [10]


def test_folder_that_is_empty_starts_at_zero_or_is_an_error_as_asked(gcs: GcsService) -> None:
    assert open_bucket().choose("auto") is None
    with pytest.raises(CheckpointError, match="no complete checkpoint in gs://tpu-test/run/checkpoints"):
        open_bucket().choose("must")


# Orbax closes its event loop under the requests that it has given up.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_save_that_may_not_write_fails_by_name_and_leaves_the_last_step(
    program: Program, state: ToyState, gcs: GcsService
) -> None:
    save_all(open_bucket(), state, 5)
    gcs.fail(op="insert|resumable", name="checkpoints/10", status=403, message="no storage.objects.create", times=None)
    checkpoints = open_bucket()
    checkpoints.save(10, state)
    with pytest.raises(CheckpointError, match="checkpoint of step 10"):
        checkpoints.close()
    gcs.serve_well()
    assert open_bucket().latest() == 5


def test_save_to_a_slow_bucket_holds_training_up_for_few_requests(
    program: Program, state: ToyState, gcs: GcsService
) -> None:
    checkpoints = open_bucket()
    save_all(checkpoints, state, 1, 2, 3)
    checkpoints = open_bucket()
    checkpoints.choose("auto")
    checkpoints.save(4, state)
    checkpoints.wait()
    delay = gcs.fail(delay_seconds=0.1, times=None)
    checkpoints.save(5, state)
    checkpoints.close()
    *_, saved = checkpoints.poll()
    assert saved.blocked_seconds < 12 * 0.1
    assert delay.hits > 50
