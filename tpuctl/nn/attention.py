"""Causal attention within segments: one signature, three implementations.

``reference`` is exact and plain. ``blockwise`` gives the same numbers in memory linear in the sequence (Dao et al.
2022), for CPU. ``splash`` is the Pallas kernel that jax ships, for TPU. In all of them a query sees the keys of its
own segment at or before it, itself included: so padding (segment 0) sees only padding, no row is ever fully
masked, and nothing divides by zero.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, Int

AttentionKernel = Literal["reference", "blockwise", "splash"]

CONTEXT_NAME = "attention_context"
"""Name under which attention's result may be saved by a rematerialisation policy."""

BLOCK = 512
"""Queries and keys per block of ``blockwise``; a sequence of one block is left to ``reference``."""

_MASKED = -1e30


def kernel_for(platform: str) -> AttentionKernel:
    """The implementation for a device platform as jax names it."""
    return "splash" if platform == "tpu" else "blockwise"


def attend(
    q: Float[Array, "b s h d"],
    k: Float[Array, "b s kv d"],
    v: Float[Array, "b s kv d"],
    *,
    segment_ids: Int[Array, "b s"],
    kernel: AttentionKernel,
) -> Float[Array, "b s h d"]:
    """Causal grouped-query attention within segments, scaled by ``d ** -0.5``; softmax in f32.

    ``h`` must be a multiple of ``kv``: query head ``i`` reads key head ``i // (h / kv)``.
    """
    scaled = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    if kernel == "splash":
        from tpuctl.nn.splash import splash_attend  # Pallas costs a second of import that CPU runs need not pay

        return splash_attend(scaled, k, v, segment_ids=segment_ids)
    # Within one block the reference is also the cheaper one: its backward pass need not recompute the scores.
    implementation = _reference if kernel == "reference" or q.shape[1] <= BLOCK else _blockwise_any_length
    heads_inside = implementation(_group(scaled, k.shape[2]), _head_major(k), _head_major(v), segment_ids)
    context: Array = checkpoint_name(heads_inside.transpose(0, 3, 1, 2, 4).reshape(q.shape), CONTEXT_NAME)
    return context


def _group(q: Float[Array, "b s h d"], kv_heads: int) -> Float[Array, "b kv g s d"]:
    batch, length, heads, dim = q.shape
    return q.reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)


def _head_major(x: Float[Array, "b s kv d"]) -> Float[Array, "b kv s d"]:
    return x.transpose(0, 2, 1, 3)


def _reference(q: Array, k: Array, v: Array, segment_ids: Array) -> Float[Array, "b kv g s d"]:
    visible = _visible(segment_ids, segment_ids, starts=(0, 0))
    weights = jax.nn.softmax(jnp.where(visible, _scores(q, k), _MASKED), axis=-1)
    return _mix(weights.astype(v.dtype), v).astype(q.dtype)


def _scores(q: Array, k: Array) -> Float[Array, "b kv g q k"]:
    return jnp.einsum("bkgqd,bksd->bkgqs", q, k, preferred_element_type=jnp.float32)


def _mix(weights: Array, v: Array) -> Float[Array, "b kv g q d"]:
    return jnp.einsum("bkgqs,bksd->bkgqd", weights, v, preferred_element_type=jnp.float32)


def _visible(q_ids: Array, k_ids: Array, *, starts: tuple[Any, Any]) -> Bool[Array, "b 1 1 q k"]:
    q_index = starts[0] + jnp.arange(q_ids.shape[1])[:, None]
    k_index = starts[1] + jnp.arange(k_ids.shape[1])[None, :]
    seen: Array = (q_index >= k_index) & (q_ids[:, :, None] == k_ids[:, None, :])
    return seen[:, None, None]


def _blockwise_any_length(q: Array, k: Array, v: Array, segment_ids: Array) -> Float[Array, "b kv g s d"]:
    length = q.shape[3]
    extra = -length % BLOCK
    q, k, v = (jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, extra), (0, 0)]) for x in (q, k, v))
    ids = jnp.pad(segment_ids, ((0, 0), (0, extra)), constant_values=-1)
    return _blockwise(q, k, v, ids)[..., :length, :]


@jax.custom_vjp
def _blockwise(q: Array, k: Array, v: Array, segment_ids: Array) -> Float[Array, "b kv g s d"]:
    return _blockwise_forward(q, k, v, segment_ids)[0]


def _blockwise_forward(q: Array, k: Array, v: Array, segment_ids: Array) -> tuple[Array, tuple[Array, ...]]:
    def query_block(i: Array) -> tuple[Array, Array]:
        q_i = _block(q, i)

        def key_block(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            total, peak, norm = carry
            scores = _masked_scores(q_i, _block(k, j), segment_ids, (i, j))
            higher = jnp.maximum(peak, scores.max(axis=-1))
            weights = jnp.exp(scores - higher[..., None])
            shrink = jnp.exp(peak - higher)
            mixed = _mix(weights.astype(v.dtype), _block(v, j))
            return total * shrink[..., None] + mixed, higher, norm * shrink + weights.sum(axis=-1)

        start = (jnp.zeros(q_i.shape, jnp.float32), jnp.full(q_i.shape[:-1], _MASKED), jnp.zeros(q_i.shape[:-1]))
        total, peak, norm = lax.fori_loop(0, i + 1, key_block, start)
        return (total / norm[..., None]).astype(q.dtype), peak + jnp.log(norm)

    out, log_norm = lax.map(query_block, jnp.arange(q.shape[3] // BLOCK))
    out, log_norm = _join(out), _join(log_norm[..., None])
    return out, (q, k, v, segment_ids, out, log_norm)


def _blockwise_backward(saved: tuple[Array, ...], d_out: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, segment_ids, out, log_norm = saved
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    blocks = q.shape[3] // BLOCK

    def key_block(d_q: Array, j: Array) -> tuple[Array, tuple[Array, Array]]:
        k_j, v_j = _block(k, j), _block(v, j)

        def query_block(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            d_q, d_k, d_v = carry
            q_i, d_out_i = _block(q, i), _block(d_out, i)
            weights = jnp.exp(_masked_scores(q_i, k_j, segment_ids, (i, j)) - _block(log_norm, i))
            d_scores = weights * (_scores(d_out_i, v_j) - _block(delta, i))
            weights, d_scores = weights.astype(q.dtype), d_scores.astype(q.dtype)
            d_q = _add_block(d_q, _mix(d_scores, k_j), i)
            return d_q, d_k + _mix_back(d_scores, q_i), d_v + _mix_back(weights, d_out_i)

        zeros = jnp.zeros(k_j.shape, jnp.float32)
        d_q, d_k, d_v = lax.fori_loop(j, blocks, query_block, (d_q, zeros, zeros))
        return d_q, (d_k.astype(k.dtype), d_v.astype(v.dtype))

    d_q, (d_k, d_v) = lax.scan(key_block, jnp.zeros(q.shape, jnp.float32), jnp.arange(blocks))
    return d_q.astype(q.dtype), _join(d_k), _join(d_v), None


_blockwise.defvjp(_blockwise_forward, _blockwise_backward)


def _block(x: Array, index: Array) -> Array:
    return lax.dynamic_slice_in_dim(x, index * BLOCK, BLOCK, axis=x.ndim - 2)


def _add_block(x: Array, block: Array, index: Array) -> Array:
    return lax.dynamic_update_slice_in_dim(x, _block(x, index) + block, index * BLOCK, axis=x.ndim - 2)


def _join(blocks: Float[Array, "n *b block d"]) -> Float[Array, "*b s d"]:
    inner = jnp.moveaxis(blocks, 0, -3)
    return inner.reshape(*inner.shape[:-3], -1, inner.shape[-1])


def _masked_scores(q_i: Array, k_j: Array, segment_ids: Array, place: tuple[Array, Array]) -> Array:
    ids = [lax.dynamic_slice_in_dim(segment_ids, index * BLOCK, BLOCK, axis=1) for index in place]
    visible = _visible(ids[0], ids[1], starts=(place[0] * BLOCK, place[1] * BLOCK))
    return jnp.where(visible, _scores(q_i, k_j), _MASKED)


def _mix_back(weights: Array, x: Array) -> Float[Array, "b kv k d"]:
    return jnp.einsum("bkgqs,bkgqd->bksd", weights, x, preferred_element_type=jnp.float32)
