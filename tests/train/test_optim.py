"""The learning rate and AdamW."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.fakes.tiny_training import OPTIM
from tpuctl.train.optim import adamw, clip_factor, learning_rate_schedule


def rates(*, steps: int = 20, **fields: object) -> np.ndarray:
    schedule = learning_rate_schedule(replace(OPTIM, learning_rate=1.0, **fields), steps=steps)
    return np.array([float(schedule(jnp.int32(step))) for step in range(steps + 3)])


def test_schedule_warms_up_to_the_peak_without_a_step_at_rate_zero():
    np.testing.assert_allclose(rates(schedule="constant", warmup_steps=5)[:7], [0.2, 0.4, 0.6, 0.8, 1, 1, 1], rtol=1e-6)


def test_schedule_cosine_falls_to_the_final_ratio_and_stays():
    got = rates(schedule="cosine", warmup_steps=5, decay_steps=15)
    expected = [0.1 + 0.9 * (1 + np.cos(np.pi * k / 15)) / 2 for k in range(16)]
    np.testing.assert_allclose(got[5:21], expected, rtol=1e-5)
    np.testing.assert_allclose(got[20:], 0.1, rtol=1e-6)


def test_schedule_linear_falls_in_equal_parts():
    got = rates(schedule="linear", decay_steps=10, final_ratio=0.0)
    np.testing.assert_allclose(got[:12], [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0], atol=1e-6)


def test_schedule_wsd_holds_and_falls_over_the_last_steps():
    got = rates(schedule="wsd", warmup_steps=4, decay_steps=5, final_ratio=0.5)
    np.testing.assert_allclose(got[3:16], 1.0, rtol=1e-6)
    np.testing.assert_allclose(got[15:21], [1.0, 0.9, 0.8, 0.7, 0.6, 0.5], rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_schedule_is_never_negative_or_above_the_peak(schedule):
    got = rates(schedule=schedule, warmup_steps=3, decay_steps=17)
    assert (got > 0).all()
    assert got.max() <= 1.0


AXES = {"embedding": ("vocab", "embed"), "norm": ("layer", "norm"), "up": ("layer", "embed", "mlp")}


def test_adamw_decays_matrices_but_neither_norms_nor_the_embedding():
    params = {name: jnp.ones((2,) * len(axes)) for name, axes in AXES.items()}
    optimizer = adamw(OPTIM, AXES)
    zeros = {name: jnp.zeros_like(leaf) for name, leaf in params.items()}
    direction, _ = optimizer.update(zeros, optimizer.init(params), params)
    assert {name: float(leaf.max()) for name, leaf in direction.items()} == {
        "embedding": 0.0,
        "norm": 0.0,
        "up": pytest.approx(0.1),
    }


def test_adamw_equals_optax_adamw():
    params, grads = {"up": jnp.array([[[1.0, -2.0]]])}, {"up": jnp.array([[[0.3, 0.1]]])}
    ours, theirs = adamw(OPTIM, {"up": AXES["up"]}), optax.adamw(0.01, b1=0.9, b2=0.95, weight_decay=0.1)
    our_state, their_state = ours.init(params), theirs.init(params)
    for _ in range(3):
        direction, our_state = ours.update(grads, our_state, params)
        update, their_state = theirs.update(grads, their_state, params)
        np.testing.assert_allclose(-0.01 * direction["up"], update["up"], rtol=1e-6)


@pytest.mark.parametrize(
    ("norm", "clip", "factor"), [(2.0, 1.0, 0.5), (0.5, 1.0, 1.0), (0.0, 1.0, 1.0), (9.0, None, 1.0)]
)
def test_clip_factor_brings_the_norm_to_the_limit(norm, clip, factor):
    assert float(clip_factor(jnp.float32(norm), clip)) == pytest.approx(factor)
