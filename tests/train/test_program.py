"""The real model under the loop: what is proven with a toy elsewhere, once with everything in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.fakes.tiny_training import SPEC
from tests.fakes.toy_task import Run, toy_plan
from tpuctl.mesh import create_mesh
from tpuctl.plan.schema import MeshPlan, Plan
from tpuctl.train import loop
from tpuctl.train.program import program_for

SPLIT = MeshPlan(slice=1, data=2, fsdp=2, tensor=1)
SPLIT_OTHERWISE = MeshPlan(slice=1, data=1, fsdp=2, tensor=2)
ALONE = MeshPlan(slice=1, data=1, fsdp=1, tensor=1)


def run_of(plan: Plan) -> Run:
    mesh = plan.mesh
    devices = jax.devices()[: mesh.batch_shards * mesh.tensor]
    return Run(plan, program=program_for(plan, create_mesh(mesh, devices=devices)))


def model_plan(directory: Path, *, mesh: MeshPlan = SPLIT, **changes: object) -> Plan:
    return replace(toy_plan(directory, **changes), mesh=mesh, model=SPEC)


def test_resumed_model_equals_the_unbroken_one_bit_for_bit(tmp_path: Path) -> None:
    unbroken = run_of(model_plan(tmp_path / "a", train__eval_every=6))
    loop.run(unbroken.task)
    loop.run(run_of(model_plan(tmp_path / "b", train__steps=4)).task)

    resumed = run_of(model_plan(tmp_path / "b", train__eval_every=6))
    loop.run(resumed.task)

    assert resumed.losses() == {step: loss for step, loss in unbroken.losses().items() if step > 4}
    assert resumed.told("eval", "loss") == unbroken.told("eval", "loss")
    states = [
        run.task.checkpoints.restore(12, run.task.program.abstract_state)
        for run in (run_of(unbroken.task.plan), run_of(resumed.task.plan))
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("mesh", [SPLIT_OTHERWISE, ALONE], ids=["fsdp2_tensor2", "one_device"])
def test_model_resumed_on_another_mesh_goes_on_in_the_same_stream(mesh: MeshPlan, tmp_path: Path) -> None:
    # No dropout: its masks are drawn per row, so that they agree too, but that is the model's own test.
    loop.run(run_of(model_plan(tmp_path, train__steps=4, train__dropout=0.0)).task)
    unbroken = run_of(model_plan(tmp_path / "unbroken", train__steps=8, train__dropout=0.0))
    loop.run(unbroken.task)

    resumed = run_of(model_plan(tmp_path, mesh=mesh, train__steps=8, train__dropout=0.0))
    loop.run(resumed.task)

    expected = {step: loss for step, loss in unbroken.losses().items() if step > 4}
    assert resumed.losses() == pytest.approx(expected, rel=1e-4)
