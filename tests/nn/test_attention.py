"""All kernels of attention against a loop over single queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuctl.nn import attention
from tpuctl.nn.attention import attend, kernel_for
from tpuctl.nn.splash import splash_attend


def naive(q, k, v, segment_ids):
    """One query at a time, in f64, straight from the definition."""
    batch, length, heads, dim = q.shape
    shared = heads // k.shape[2]
    out = np.zeros(q.shape)
    for b, i, h in np.ndindex(batch, length, heads):
        seen = [j for j in range(i + 1) if segment_ids[b, j] == segment_ids[b, i]]
        scores = k[b, seen, h // shared].astype(np.float64) @ q[b, i, h] / dim**0.5
        weights = np.exp(scores - scores.max())
        out[b, i, h] = (weights / weights.sum()) @ v[b, seen, h // shared]
    return out


def make_inputs(*, length: int, heads: int = 4, kv_heads: int = 2, dim: int = 8):
    random = np.random.default_rng(0)
    q = random.standard_normal((2, length, heads, dim), np.float32)
    k, v = (random.standard_normal((2, length, kv_heads, dim), np.float32) for _ in range(2))
    segment_ids = np.ones((2, length), np.int32)
    segment_ids[0, length // 3 :] = 2
    segment_ids[0, -5:] = 0  # padding
    segment_ids[1, :] = 0  # a row of nothing but padding
    return q, k, v, segment_ids


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 16)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kernel", ["reference", "blockwise"])
@pytest.mark.parametrize("length", [16, 48, 41])
def test_attend_equals_the_definition(kernel, length):
    q, k, v, segment_ids = make_inputs(length=length)
    out = attend(q, k, v, segment_ids=segment_ids, kernel=kernel)
    np.testing.assert_allclose(out, naive(q, k, v, segment_ids), atol=2e-6)


@pytest.mark.usefixtures("small_blocks")
def test_attend_blockwise_gradients_equal_the_reference():
    q, k, v, segment_ids = make_inputs(length=41)
    weights = np.random.default_rng(1).standard_normal(q.shape, np.float32)

    def gradients(kernel):
        def loss(q, k, v):
            return (attend(q, k, v, segment_ids=segment_ids, kernel=kernel) * weights).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)

    for got, want in zip(gradients("blockwise"), gradients("reference"), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, atol=5e-6)


def test_attend_blockwise_never_holds_all_scores():
    shape = jax.ShapeDtypeStruct((1, 4096, 2, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, 4096), jnp.int32)

    def loss(q, k, v, ids):
        return attend(q, k, v, segment_ids=ids, kernel="blockwise").sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape, ids).compile()
    all_scores = 2 * 4096 * 4096 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < all_scores / 8


def test_attend_of_padding_is_finite_also_in_bfloat16():
    q, k, v, segment_ids = make_inputs(length=16)
    out = attend(*(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)), segment_ids=segment_ids, kernel="reference")
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), naive(q, k, v, segment_ids), atol=3e-2)


def test_splash_in_interpret_mode_equals_the_reference():
    q, k, v, segment_ids = make_inputs(length=128, heads=2, kv_heads=1, dim=128)
    scaled = q * 128**-0.5
    out = splash_attend(scaled, k, v, segment_ids=jnp.asarray(segment_ids), interpret=True)
    expected = attend(q, k, v, segment_ids=segment_ids, kernel="reference")
    np.testing.assert_allclose(out, expected, atol=2e-5)


def test_kernel_for_tpu_is_splash_and_blockwise_elsewhere():
    assert (kernel_for("tpu"), kernel_for("cpu")) == ("splash", "blockwise")
