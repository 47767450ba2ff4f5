"""The training step: what it computes, on any mesh, is what one device computes."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.fakes.tiny_training import SPEC, make_batch, make_plan
from tpuctl.mesh import create_mesh
from tpuctl.nn.params import bind
from tpuctl.train.batch import HostBatch
from tpuctl.train.state import init_state
from tpuctl.train.step import make_global_batch, make_train_step

MESHES = [
    {"fsdp": 8},
    {"data": 8},
    {"slice": 2, "fsdp": 4},
    {"data": 2, "fsdp": 4},
    {"fsdp": 4, "tensor": 2},
    {"fsdp": 2, "tensor": 2},
    {"slice": 2, "data": 2, "tensor": 2},
    {"data": 2, "fsdp": 2, "tensor": 2},
]


def run_steps(plan, batches, *, stop_vote=False, real_vocab=None):
    """Final state and the metrics of each step, as NumPy."""
    devices = jax.devices()[: math.prod((plan.mesh.slice, plan.mesh.data, plan.mesh.fsdp, plan.mesh.tensor))]
    mesh = create_mesh(plan.mesh, devices=devices)
    state = init_state(plan, mesh)
    step = make_train_step(plan, mesh, real_vocab=real_vocab)
    seen = []
    for batch in batches:
        rows = len(batch.tokens)
        state, metrics = step(state, make_global_batch(batch, mesh, global_batch=rows, stop_vote=stop_vote))
        seen.append(jax.device_get(metrics))
    return jax.device_get(state), seen


def assert_trees_close(left, right, *, rtol, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), left, right)


def masked(batch: HostBatch, keep: np.ndarray) -> HostBatch:
    return replace(batch, loss_mask=batch.loss_mask * keep.astype(np.int32))


def first_tokens(counts: list[int], length: int) -> np.ndarray:
    return np.arange(length)[None, :] < np.array(counts)[:, None]


@pytest.fixture(scope="module")
def one_device():
    plan = make_plan(z_loss=1e-3)
    return run_steps(plan, [make_batch(seed=i) for i in range(3)])


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "-".join(f"{k}{v}" for k, v in m.items()))
def test_train_step_on_a_mesh_equals_one_device(mesh, one_device):
    state, metrics = run_steps(make_plan(mesh=mesh, z_loss=1e-3), [make_batch(seed=i) for i in range(3)])
    expected_state, expected = one_device
    for got, want in zip(metrics, expected, strict=True):
        assert got["tokens"] == want["tokens"] == 8 * 29
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-5)
        np.testing.assert_allclose(got["grad_norm"], want["grad_norm"], rtol=2e-4)
    # Adam divides by the root of the second moment, so weights whose gradient is nearly 0 magnify rounding.
    assert_trees_close(state.params, expected_state.params, rtol=0, atol=2e-3)
    assert_trees_close(state.opt_state, expected_state.opt_state, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize("mesh", [{"fsdp": 4, "tensor": 2}, {"data": 2, "fsdp": 2}], ids=str)
def test_train_step_with_tied_embedding_on_a_mesh_equals_one_device(mesh):
    model = replace(SPEC, tied_embedding=True)
    _, metrics = run_steps(make_plan(model=model, mesh=mesh), [make_batch()] * 2)
    _, expected = run_steps(make_plan(model=model), [make_batch()] * 2)
    np.testing.assert_allclose([m["loss"] for m in metrics], [m["loss"] for m in expected], rtol=2e-5)
    np.testing.assert_allclose([m["grad_norm"] for m in metrics], [m["grad_norm"] for m in expected], rtol=2e-4)
    assert metrics[1]["loss"] < metrics[0]["loss"]


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2}, {"fsdp": 2, "tensor": 2}], ids=str)
def test_loss_and_gradient_norm_equal_a_naive_computation(mesh):
    plan, batch = make_plan(mesh=mesh), make_batch()
    _, (metrics,) = run_steps(plan, [batch])
    params = init_state(plan, create_mesh(make_plan().mesh, devices=jax.devices()[:1])).params

    def naive(params):
        from tpuctl.nn.decoder import TokenRows

        rows = TokenRows(tokens=batch.tokens, positions=batch.positions, segment_ids=batch.segment_ids)
        log_probs = jax.nn.log_softmax(bind(plan.model, params).logits(rows))
        nats = -jax.numpy.take_along_axis(log_probs, batch.targets[..., None], -1)
        return (nats[..., 0] * batch.loss_mask).sum() / batch.loss_mask.sum()

    loss, grads = jax.value_and_grad(naive)(params)
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-4)
