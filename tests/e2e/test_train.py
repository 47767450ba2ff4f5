"""The whole path, as a user types it: real Ray nodes, the Jobs API over HTTP, JAX in the workers.

Each run is compared with the unbroken run of the same recipe, which is made once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import psutil
import pytest

from tests.e2e.command import Command, Done
from tpuctl.cluster.processes import MARKER_VARIABLE

pytestmark = pytest.mark.ray

STEPS = 20
RECIPE = """
kind = "train"
[run]
name = "{name}"
directory = "{directory}"
[slice]
accelerator = "{accelerator}"
topology = "{topology}"
[model]
preset = "tiny-1m"
[data]
uri = "{text}/train"
eval_uri = "{text}/held-out"
[train]
steps = 20
global_batch = 8
sequence_length = 128
compute_dtype = "float32"
log_every = 1
eval_batches = 2
[checkpoint]
every = 5
keep = 2
[job]
start_timeout = "90s"
{job}
"""


@pytest.fixture(scope="module")
def make_recipe(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Callable[..., Path]:
    def make(name: str, *, hosts: int, job: str = "") -> Path:
        root = tmp_path_factory.mktemp(name)
        accelerator, topology = {1: ("v6e", "2x2"), 2: ("v4", "2x2x2")}[hosts]
        path = root / "recipe.toml"
        path.write_text(
            RECIPE.format(
                name=name,
                directory=root / "run",
                accelerator=accelerator,
                topology=topology,
                text=text_folder,
                job=job,
            )
        )
        return path

    return make


@pytest.fixture(scope="module")
def unbroken(tpuctl: Command, make_recipe: Callable[..., Path]) -> tuple[Path, Done]:
    """The run of two hosts that nothing disturbs."""
    recipe = make_recipe("unbroken", hosts=2)
    return recipe, tpuctl("train", recipe)


def losses(recipe: Path) -> dict[int, float]:
    lines = (recipe.parent / "run" / "metrics.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines]
    steps = [item["step"] for item in items if item["event"] == "step"]
    assert steps == sorted(set(steps)), "one history: no step twice, none out of order"
    return {item["step"]: item["loss"] for item in items if item["event"] == "step"}


def checkpoint_steps(recipe: Path) -> list[int]:
    return sorted(int(path.name) for path in (recipe.parent / "run" / "checkpoints").iterdir() if path.name.isdigit())


def wait_for_step(recipe: Path, step: int, *, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    metrics = recipe.parent / "run" / "metrics.jsonl"
    while not (metrics.exists() and f'"step":{step},' in metrics.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"step {step} did not come"
        time.sleep(0.1)


def test_train_two_hosts_ends_well_with_phases_losses_and_checkpoints(unbroken: tuple[Path, Done]) -> None:
    recipe, done = unbroken
    assert done.code == 0, done.everything
    for phase in ("reserved", "joined  2 of 2 hosts, 4 devices each (simulated: CPU)", "compiled in", "step 20 of 20"):
        assert phase in done.out, done.everything
    assert "held-out loss" in done.err
    assert f"--set train.steps={2 * STEPS}" in done.err
    found = losses(recipe)
    assert list(found) == list(range(1, STEPS + 1))
    assert found[STEPS] < found[1]
    assert checkpoint_steps(recipe) == [15, 20]


def test_train_one_host_same_recipe_same_losses_as_two(
    tpuctl: Command, make_recipe: Callable[..., Path], unbroken: tuple[Path, Done]
) -> None:
    recipe = make_recipe("one-host", hosts=1)
    done = tpuctl("train", recipe)
    assert done.code == 0, done.everything
    assert losses(recipe) == pytest.approx(losses(unbroken[0]), abs=1e-5)


def test_train_host_killed_repeats_the_unbroken_run_bit_for_bit(
    tpuctl: Command, make_recipe: Callable[..., Path], unbroken: tuple[Path, Done]
) -> None:
    recipe = make_recipe("killed", hosts=2, job="max_failures = 1")
    process = tpuctl.start("train", recipe)
    wait_for_step(recipe, 12, process=process)
    os.kill(worker_of(tpuctl, host=1), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert "restart 1 from the last checkpoint" in out
    assert "resuming from step 10" in out
    assert losses(recipe) == losses(unbroken[0])
    assert_same_checkpoint(recipe, unbroken[0], step=STEPS)


@pytest.mark.slow
def test_train_host_preempted_then_one_killed_spends_one_failure(
    tpuctl: Command, make_recipe: Callable[..., Path], unbroken: tuple[Path, Done]
) -> None:
    recipe = make_recipe("preempted", hosts=2, job="max_failures = 1")
    process = tpuctl.start("train", recipe)
    wait_for_step(recipe, 2, process=process)
    os.kill(worker_of(tpuctl, host=1), signal.SIGTERM)
    wait_for_step(recipe, 12, process=process)
    os.kill(worker_of(tpuctl, host=1), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert "(host about to be preempted)" in out, out + err
    assert "restart 1 from there, not counted as a failure" in out
    assert "restart 2 from the last checkpoint" in out
    assert losses(recipe) == losses(unbroken[0])
    assert_same_checkpoint(recipe, unbroken[0], step=STEPS)


@pytest.mark.slow
def test_train_stopped_midway_saves_and_the_same_recipe_resumes_to_the_same_losses(
    tpuctl: Command, make_recipe: Callable[..., Path], unbroken: tuple[Path, Done]
) -> None:
    recipe = make_recipe("stopped", hosts=2)
    process = tpuctl.start("train", recipe)
    wait_for_step(recipe, 2, process=process)
    stopped = tpuctl("stop", "stopped-1")
    out, err = process.communicate(timeout=120)
    assert stopped.code == 0, stopped.everything
    assert process.returncode == 1
    assert "stopped at step" in out, out + err
    step = checkpoint_steps(recipe)[-1]
    assert 2 <= step < STEPS
    again = tpuctl("train", recipe)
    assert again.code == 0, again.everything
    assert f"resuming from step {step}" in again.out
    assert losses(recipe) == losses(unbroken[0])
    assert_same_checkpoint(recipe, unbroken[0], step=STEPS)


def test_train_slice_is_busy_exits_3_with_the_reason_and_detached_job_is_attached_again(
    tpuctl: Command, make_recipe: Callable[..., Path]
) -> None:
    long = make_recipe("long", hosts=1)
    detached = tpuctl("train", long, "--detach", "--set", "train.steps=100000")
    assert (detached.code, detached.out) == (0, "long-1\n"), detached.everything
    process = tpuctl.start("train", long, "--set", "train.steps=100000")
    wait_for_step(long, 1, process=process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "attached to job long-1" in err
    assert "tpuctl logs long-1 -f" in err
    started = time.monotonic()
    refused = tpuctl("train", make_recipe("late", hosts=1))
    assert refused.code == 3, refused.everything
    assert "busy with" in refused.err
    assert "long-1" in refused.err
    assert time.monotonic() - started < 10
    other = tpuctl("train", long, "--set", "train.steps=99999")
    assert other.code == 3, other.everything
    assert "is at work there, from another recipe" in other.err
    assert tpuctl("stop", "long-1").code == 0
    shown = tpuctl("jobs", "show", "long-1")
    assert shown.code == 0, shown.everything
    assert "stopped" in shown.out.lower()


@pytest.mark.slow
def test_train_gate_missed_exits_4_and_says_the_gate(tpuctl: Command, make_recipe: Callable[..., Path]) -> None:
    recipe = make_recipe("gate", hosts=1)
    done = tpuctl("train", recipe, "--set", "train.steps=2", "--set", "expect.max_eval_loss=0.1")
    assert done.code == 4, done.everything
    assert "max_eval_loss = 0.1, got" in done.err


def test_train_column_that_is_not_there_exits_1_naming_it_and_does_not_restart(
    tpuctl: Command, make_recipe: Callable[..., Path]
) -> None:
    recipe = make_recipe("column", hosts=1)
    done = tpuctl("train", recipe, "--set", "data.text_column=words")
    assert done.code == 1, done.everything
    assert "words" in done.err
    assert "restart" not in done.out


def worker_of(tpuctl: Command, *, host: int) -> int:
    """The pid of the training worker on that host of a running cluster."""
    markers = {json.loads(path.read_text())["marker"] for path in tpuctl.state_dir.glob("clusters/*/state.json")}
    for process in psutil.process_iter(["cmdline", "environ"]):  # what is ending has neither
        if "RayTrainWorker" in " ".join(process.info["cmdline"] or []):
            environ = process.info["environ"] or {}
            if environ.get(MARKER_VARIABLE) in markers and environ.get("TPU_WORKER_ID") == str(host):
                return process.pid
    raise AssertionError(f"no training worker on host {host}")


def assert_same_checkpoint(one: Path, other: Path, *, step: int) -> None:
    found, wanted = (read_arrays(path.parent / "run" / "checkpoints" / str(step)) for path in (one, other))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


def read_arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """A checkpoint's arrays whole, on whatever devices they were saved."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(checkpoint).item_metadata.tree
        whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(checkpoint, restore_args=whole)
