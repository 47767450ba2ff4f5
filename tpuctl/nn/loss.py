"""Cross-entropy from hidden states, in chunks of tokens: the logits of a whole batch never exist.

The forward pass of a gradient computation already makes the gradients, chunk by chunk, while the chunk's logits are
at hand (the loss is a plain sum, so its cotangent is one scalar that can be multiplied in later). That is three
matrix products instead of the four that recomputing the logits would take.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from tpuctl.nn.layers import outer_sum

_CHUNK_TOKENS = 2048
_CHUNK_BYTES = 1 << 30
_MIN_CHUNKS = 2
_EXCLUDED = -1e30


@dataclass(frozen=True, kw_only=True, slots=True)
class LossOptions:
    """What the loss is. ``real_vocab`` excludes padded rows from the softmax; ``tensor`` is that axis' length.

    A ``softcap`` c turns a logit x into c · tanh(x / c).
    """

    real_vocab: int
    softcap: float | None = None
    z_loss: float = 0.0
    tensor: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What to predict: token ids, and 1 where they count."""

    tokens: Int[Array, "b s"]
    mask: Int[Array, "b s"]


jax.tree_util.register_dataclass(Targets)


def cross_entropy(
    hidden: Float[Array, "b s d"], head: Float[Array, "d v_shard"], targets: Targets, *, options: LossOptions
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums over the counted tokens: ``(objective, nats)``.

    ``nats`` is the cross-entropy (without gradient); ``objective`` adds ``z_loss · log(Z)²`` and is what is
    differentiated. Both are the same on every ``tensor`` device; the gradient of ``hidden`` is each device's part.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    labels, mask = targets.tokens.reshape(-1), targets.mask.reshape(-1).astype(jnp.float32)
    chunks = num_chunks(rows.shape[0], head.shape[1])
    split = [_split(x, chunks) for x in (rows, labels, mask)]
    objective, nats = _summed(*split, head, options)
    return objective, lax.stop_gradient(nats)


def num_chunks(tokens: int, local_vocab: int) -> int:
    """Into how many chunks the tokens of one device are cut: few, so that the head's gradient, which is added up
    once per chunk, does not cost more than the products; enough to keep a chunk's f32 logits small."""
    at_most = max(1, min(_CHUNK_TOKENS, _CHUNK_BYTES // (4 * local_vocab), tokens // _MIN_CHUNKS))
    return -(-tokens // at_most)


def _split(x: Array, chunks: int) -> Array:
    padding = [(0, -x.shape[0] % chunks)] + [(0, 0)] * (x.ndim - 1)
    padded = jnp.pad(x, padding)  # a padded token has mask 0
    return padded.reshape(chunks, -1, *x.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _summed(rows: Array, labels: Array, mask: Array, head: Array, options: LossOptions) -> tuple[Array, Array]:
    def chunk(sums: Array, xs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        return sums + jnp.stack(_chunk(xs[0], xs[1], xs[2], head=head, options=options)[:2]), None

    sums, _ = lax.scan(chunk, jnp.zeros(2, jnp.float32), (rows, labels, mask))
    return sums[0], sums[1]


def _summed_forward(rows: Array, labels: Array, mask: Array, head: Array, options: LossOptions) -> tuple[Any, Any]:
    def chunk(carry: tuple[Array, Array], xs: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        sums, d_head = carry
        objective, nats, d_logits = _chunk(xs[0], xs[1], xs[2], head=head, options=options)
        d_logits = d_logits.astype(head.dtype)
        d_head += outer_sum(xs[0], d_logits, dtype=jnp.float32)
        return (sums + jnp.stack([objective, nats]), d_head), jnp.dot(d_logits, head.T)

    start = (jnp.zeros(2, jnp.float32), jnp.zeros(head.shape, jnp.float32))
    (sums, d_head), d_rows = lax.scan(chunk, start, (rows, labels, mask))
    return (sums[0], sums[1]), (d_rows, d_head.astype(head.dtype))


def _summed_backward(options: LossOptions, saved: Any, cotangents: Any) -> tuple[Array, None, None, Array]:
    d_rows, d_head = saved
    d_objective = cotangents[0]
    return d_rows * d_objective.astype(d_rows.dtype), None, None, d_head * d_objective.astype(d_head.dtype)


_summed.defvjp(_summed_forward, _summed_backward)


def _chunk(
    rows: Array, labels: Array, mask: Array, *, head: Array, options: LossOptions
) -> tuple[Array, Array, Float[Array, "chunk v_shard"]]:
    """Objective, nats and the gradient of the objective by the logits, for one chunk."""
    logits, slope = _capped(jnp.dot(rows, head, preferred_element_type=jnp.float32), options.softcap)
    column = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    if options.tensor > 1:
        column += lax.axis_index("tensor") * head.shape[1]
    logits = jnp.where(column < options.real_vocab, logits, _EXCLUDED)
    is_label = column == labels[:, None]
    peak = _over_tensor(logits.max(axis=-1), options, lax.pmax)
    exps = jnp.exp(logits - peak[:, None])
    norm = _over_tensor(exps.sum(axis=-1), options, lax.psum)
    log_norm = peak + jnp.log(norm)
    label_logit = _over_tensor(jnp.where(is_label, logits, 0).sum(axis=-1), options, lax.psum)
    nats = (log_norm - label_logit) * mask
    objective = nats + options.z_loss * log_norm**2 * mask
    by_log_norm = mask * (1 + 2 * options.z_loss * log_norm)
    d_logits = exps * (by_log_norm / norm)[:, None] - jnp.where(is_label, mask[:, None], 0)
    return objective.sum(), nats.sum(), d_logits * slope


def _capped(logits: Array, softcap: float | None) -> tuple[Array, Array | float]:
    """The capped logits and their derivative."""
    if softcap is None:
        return logits, 1.0
    bounded = jnp.tanh(logits / softcap)
    return softcap * bounded, 1.0 - bounded**2


def _over_tensor(x: Array, options: LossOptions, reduce: Any) -> Array:
    return reduce(x, "tensor") if options.tensor > 1 else x
