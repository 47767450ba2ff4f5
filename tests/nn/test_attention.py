"""All kernels of attention against a loop over single queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuctl.nn import attention, splash
from tpuctl.nn.attention import NO_WINDOW, LayerView, RowAttention, kernel_for
from tpuctl.nn.splash import splash_attend

WINDOW = 11


def attend(q, k, v, *, segment_ids, kernel, window=None, local=True, softcap=None, all_local=False, interpret=False):
    """Attention of one layer of a model; with a ``window``, of a local or of a global layer."""
    view = LayerView(index=jnp.int32(0), window=jnp.int32(window if window and local else NO_WINDOW), softcap=softcap)
    rows = RowAttention(segment_ids=jnp.asarray(segment_ids), kernel=kernel, window=window, all_local=all_local)
    scaled = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    if interpret:
        return splash_attend(scaled, k, v, rows=rows, layer=view, interpret=True)
    return rows(scaled, k, v, layer=view, state=())[0]


def naive(q, k, v, segment_ids, *, window=10**9, softcap=None):
    """One query at a time, in f64, straight from the definition."""
    batch, length, heads, dim = q.shape
    shared = heads // k.shape[2]
    out = np.zeros(q.shape)
    for b, i, h in np.ndindex(batch, length, heads):
        seen = [j for j in range(max(0, i + 1 - window), i + 1) if segment_ids[b, j] == segment_ids[b, i]]
        scores = k[b, seen, h // shared].astype(np.float64) @ q[b, i, h] / dim**0.5
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
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
@pytest.mark.parametrize("kernel", ["reference", "blockwise"])
@pytest.mark.parametrize(("window", "softcap"), [(1, None), (WINDOW, None), (WINDOW, 0.5), (40, 2.0), (None, 0.5)])
def test_attend_of_a_local_layer_equals_the_definition(kernel, window, softcap):
    q, k, v, segment_ids = make_inputs(length=73)
    out = attend(q, k, v, segment_ids=segment_ids, kernel=kernel, window=window, softcap=softcap)
    expected = naive(q, k, v, segment_ids, window=window or 10**9, softcap=softcap)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    everywhere = attend(q, k, v, segment_ids=segment_ids, kernel=kernel, window=window, local=False, softcap=softcap)
    np.testing.assert_allclose(everywhere, naive(q, k, v, segment_ids, softcap=softcap), atol=2e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (WINDOW, None), (40, 0.5)])
def test_attend_blockwise_gradients_equal_the_reference(window, softcap):
    q, k, v, segment_ids = make_inputs(length=73)
    weights = np.random.default_rng(1).standard_normal(q.shape, np.float32)

    def gradients(kernel):
        def loss(q, k, v):
            out = attend(q, k, v, segment_ids=segment_ids, kernel=kernel, window=window, softcap=softcap)
            return (out * weights).sum()

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


@pytest.mark.parametrize(
    ("window", "local", "all_local", "softcap"),
    [
        (None, False, False, None),
        (200, True, False, 2.0),
        pytest.param(200, False, False, 2.0, marks=pytest.mark.slow),
        pytest.param(50, True, False, None, marks=pytest.mark.slow),
        pytest.param(200, True, True, None, marks=pytest.mark.slow),
    ],
)
def test_splash_in_interpret_mode_equals_the_reference(window, local, all_local, softcap, monkeypatch):
    monkeypatch.setattr(splash, "_BLOCK", 128)  # several blocks, some of them outside of the window
    q, k, v, segment_ids = make_inputs(length=512, heads=2, kv_heads=1, dim=128)
    weights = np.random.default_rng(1).standard_normal(q.shape, np.float32)

    def value_and_gradients(**kind):
        def loss(q, k, v):
            out = attend(q, k, v, segment_ids=segment_ids, window=window, local=local, softcap=softcap, **kind)
            return (out * weights).sum(), out

        (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        return out, *grads

    got = value_and_gradients(kernel="splash", all_local=all_local, interpret=True)
    for left, right in zip(got, value_and_gradients(kernel="reference"), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_kernel_for_tpu_is_splash_and_blockwise_elsewhere():
    assert (kernel_for("tpu"), kernel_for("cpu")) == ("splash", "blockwise")
