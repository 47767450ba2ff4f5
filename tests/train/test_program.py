"""The real model under the loop: what is proven with a toy elsewhere, once with everything in place."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_training import SPEC
from tests.fakes.toy_task import Run, toy_plan
from tpuctl.mesh import create_mesh
from tpuctl.plan.schema import MeshPlan, TrainingPlan
from tpuctl.train import loop
from tpuctl.train.program import Program, program_for

SPLIT = MeshPlan(slice=1, data=2, fsdp=2, expert=1, tensor=1)
SPLIT_OTHERWISE = MeshPlan(slice=1, data=1, fsdp=2, expert=1, tensor=2)
ALONE = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1)


@cache
def program_on(mesh: MeshPlan) -> Program:
    """Compiled once per mesh: compiling is nearly all that these tests do."""
    program = program_for(model_plan(Path("/nowhere"), mesh=mesh), create_mesh(mesh, devices=devices_of(mesh)))
    first = cache(program.init)
    return replace(program, init=lambda: jax.tree.map(jnp.copy, first()))


def devices_of(mesh: MeshPlan) -> list[jax.Device]:
    return jax.devices()[: mesh.batch_shards * mesh.tensor]


def model_plan(directory: Path, *, mesh: MeshPlan = SPLIT, **changes: object) -> TrainingPlan:
    return replace(toy_plan(directory, **changes), mesh=mesh, model=SPEC)


def run_of(plan: TrainingPlan) -> Run:
    run = Run(plan, program=program_on(plan.mesh))
    loop.run(run.task)
    return run


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(model_plan(tmp_path_factory.mktemp("unbroken"), train__eval_every=6))


def test_resumed_model_equals_the_unbroken_one_bit_for_bit(unbroken: Run, tmp_path: Path) -> None:
    run_of(model_plan(tmp_path, train__steps=4))

    resumed = run_of(model_plan(tmp_path, train__eval_every=6))

    assert resumed.losses() == {step: loss for step, loss in unbroken.losses().items() if step > 4}
    assert resumed.told("eval", "loss") == unbroken.told("eval", "loss")
    states = [run.task.checkpoints.restore(12, program_on(SPLIT).abstract_state) for run in (unbroken, resumed)]
    for ours, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize(
    "mesh", [SPLIT_OTHERWISE, pytest.param(ALONE, marks=pytest.mark.slow)], ids=["fsdp2_tensor2", "one_device"]
)
def test_model_resumed_on_another_mesh_goes_on_in_the_same_stream(
    mesh: MeshPlan, unbroken: Run, tmp_path: Path
) -> None:
    run_of(model_plan(tmp_path, train__steps=4))

    resumed = run_of(model_plan(tmp_path, mesh=mesh))

    # Other sums of the same numbers: equal but for their rounding, which eight steps carry on.
    expected = {step: loss for step, loss in unbroken.losses().items() if step > 4}
    assert resumed.losses() == pytest.approx(expected, rel=1e-4)
