"""The chunked cross-entropy against plain log-softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuctl.nn import loss as loss_room
from tpuctl.nn.loss import LossOptions, Targets, cross_entropy, num_chunks


def make_inputs(*, rows: int = 3, length: int = 7, hidden: int = 8, vocab: int = 20):
    random = np.random.default_rng(0)
    states = random.standard_normal((rows, length, hidden), np.float32)
    head = random.standard_normal((hidden, vocab), np.float32)
    targets = random.integers(0, 15, (rows, length), dtype=np.int32)
    mask = random.integers(0, 2, (rows, length), dtype=np.int32)
    mask[1] = 0
    return jnp.asarray(states), jnp.asarray(head), Targets(tokens=jnp.asarray(targets), mask=jnp.asarray(mask))


def naive(states, head, targets, options):
    logits = (states @ head)[..., : options.real_vocab]
    logits = options.softcap * jnp.tanh(logits / options.softcap) if options.softcap else logits
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    label = jnp.take_along_axis(logits, targets.tokens[..., None], -1)[..., 0]
    nats = (log_norm - label) * targets.mask
    return (nats + options.z_loss * log_norm**2 * targets.mask).sum(), nats.sum()


@pytest.mark.parametrize(
    "options",
    [LossOptions(real_vocab=20), LossOptions(real_vocab=15, z_loss=0.1), LossOptions(real_vocab=15, softcap=2.0)],
    ids=str,
)
def test_cross_entropy_and_gradients_equal_log_softmax(options, monkeypatch):
    monkeypatch.setattr(loss_room, "_CHUNK_TOKENS", 4)  # 21 tokens: a ragged last chunk
    states, head, targets = make_inputs()

    def scaled(function):  # times 3, so that a lost cotangent would show
        return jax.value_and_grad(lambda s, h: 3 * function(s, h, targets, options=options)[0], argnums=(0, 1))

    got, got_grads = scaled(cross_entropy)(states, head)
    want, want_grads = scaled(lambda s, h, t, options: naive(s, h, t, options))(states, head)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for left, right in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)
    nats = cross_entropy(states, head, targets, options=options)[1]
    np.testing.assert_allclose(nats, naive(states, head, targets, options)[1], rtol=1e-6)


def test_cross_entropy_of_a_padded_vocabulary_gives_padded_rows_no_gradient():
    states, head, targets = make_inputs()
    options = LossOptions(real_vocab=15)
    gradient = jax.grad(lambda h: cross_entropy(states, h, targets, options=options)[0])(head)
    assert np.abs(gradient[:, :15]).min() > 0
    assert np.abs(gradient[:, 15:]).max() == 0


def test_cross_entropy_with_nothing_to_count_is_zero_with_zero_gradient():
    states, head, targets = make_inputs()
    nothing = Targets(tokens=targets.tokens, mask=jnp.zeros_like(targets.mask))
    options = LossOptions(real_vocab=20, z_loss=0.1)
    value, gradient = jax.value_and_grad(lambda h: cross_entropy(states, h, nothing, options=options)[0])(head)
    assert float(value) == 0
    assert np.abs(gradient).max() == 0


@pytest.mark.parametrize(
    ("tokens", "vocab", "chunks"), [(512, 8192, 2), (8192, 32000, 4), (8192, 152_064, 5), (1, 100, 1), (16384, 256, 8)]
)
def test_num_chunks_keeps_a_chunk_below_half_the_batch_2048_tokens_and_a_gibibyte(tokens, vocab, chunks):
    assert num_chunks(tokens, vocab) == chunks
