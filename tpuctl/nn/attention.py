"""Causal attention within segments: one signature, three implementations.

``reference`` is exact and plain. ``blockwise`` gives the same numbers in memory linear in the sequence (Dao et al.
2022), for CPU. ``splash`` is the Pallas kernel that jax ships, for TPU. In all of them a query sees the keys of its
own segment at or before it, itself included, in a local layer only those less than ``window`` before it: so padding
(segment 0) sees only padding, no row is ever fully masked, and nothing divides by zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, Int

AttentionKernel = Literal["reference", "blockwise", "splash"]

CONTEXT_NAME = "attention_context"
"""Name under which attention's result may be saved by a rematerialisation policy."""

NO_WINDOW = 1 << 30
"""The window of a layer that sees every key: more than any sequence has."""

BLOCK = 128
"""Queries and keys per block of ``blockwise``: the scores of one row's block stay in a core's cache. A sequence of one
block is left to ``reference``."""

_MASKED = -1e30


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerView:
    """What attention may know of the layer it runs in.

    ``index`` and ``window`` are traced, since layers run under a scan; ``softcap`` c turns the scores x into
    c · tanh(x / c) before they are masked.
    """

    index: Int[Array, ""]
    window: Int[Array, ""]
    softcap: float | None = field(default=None, metadata={"static": True})


class Attend(Protocol):
    """Attention of one layer, as the decoder calls it.

    Queries come scaled: scores are their products with the keys. ``h`` is a multiple of ``kv``: query head ``i``
    reads key head ``i // (h / kv)``. ``state`` is what the caller of the decoder gave it or the layer before
    returned (an engine's pages of keys and values; training has none).
    """

    def __call__(
        self,
        q: Float[Array, "b s h d"],
        k: Float[Array, "b s kv d"],
        v: Float[Array, "b s kv d"],
        *,
        layer: LayerView,
        state: Any,
    ) -> tuple[Float[Array, "b s h d"], Any]:
        """The mixed values, in the dtype of ``q``, and the state after this layer."""
        ...


def kernel_for(platform: str) -> AttentionKernel:
    """The implementation for a device platform as jax names it."""
    return "splash" if platform == "tpu" else "blockwise"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowAttention:
    """Attention inside the rows of a batch, an ``Attend`` without state; softmax in f32.

    ``window`` is that of the model's local layers, ``None`` where it has none; ``all_local`` says that it has no
    other layers. A kernel wants to know both before any layer runs.
    """

    segment_ids: Int[Array, "b s"]
    kernel: AttentionKernel
    window: int | None = None
    all_local: bool = False

    def __call__(self, q: Array, k: Array, v: Array, *, layer: LayerView, state: Any) -> tuple[Array, Any]:
        """See ``Attend``; ``state`` comes back as it is."""
        if self.kernel == "splash":
            from tpuctl.nn.splash import splash_attend  # Pallas costs a second of import that CPU runs need not pay

            return splash_attend(q, k, v, rows=self, layer=layer), state
        window = None if self.window is None else layer.window
        sight = _Sight(segment_ids=self.segment_ids, window=window, softcap=layer.softcap)
        plain = self.kernel == "reference" or q.shape[1] <= BLOCK
        implementation = _reference if plain else _blockwise_rows
        heads_inside = implementation(_group(q, k.shape[2]), _head_major(k), _head_major(v), sight)
        return checkpoint_name(heads_inside.transpose(0, 3, 1, 2, 4).reshape(q.shape), CONTEXT_NAME), state


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sight:
    """Which keys a query sees, and how its scores are capped."""

    segment_ids: Int[Array, "b s"]
    window: Int[Array, ""] | None
    softcap: float | None = field(metadata={"static": True})

    def visible(self, q_ids: Array, k_ids: Array, *, starts: tuple[Any, Any]) -> Bool[Array, "b 1 1 q k"]:
        """Of queries and keys with these segments, the first of each standing at ``starts``."""
        q_index = starts[0] + jnp.arange(q_ids.shape[1])[:, None]
        k_index = starts[1] + jnp.arange(k_ids.shape[1])[None, :]
        seen: Array = (q_index >= k_index) & (q_ids[:, :, None] == k_ids[:, None, :])
        if self.window is not None:
            seen &= q_index - k_index < self.window
        return seen[:, None, None]

    def first_key_block(self, i: Array) -> Array | int:
        """The first block of keys that queries of block ``i`` see."""
        return 0 if self.window is None else jnp.maximum(i * BLOCK - self.window + 1, 0) // BLOCK

    def past_query_block(self, j: Array, blocks: int) -> Array | int:
        """One past the last of the blocks of queries that see keys of block ``j``."""
        return (
            blocks if self.window is None else jnp.minimum((j * BLOCK + BLOCK + self.window - 2) // BLOCK + 1, blocks)
        )


for _node in (LayerView, _Sight):
    jax.tree_util.register_dataclass(_node)


def _group(q: Float[Array, "b s h d"], kv_heads: int) -> Float[Array, "b kv g s d"]:
    batch, length, heads, dim = q.shape
    return q.reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)


def _head_major(x: Float[Array, "b s kv d"]) -> Float[Array, "b kv s d"]:
    return x.transpose(0, 2, 1, 3)


def _reference(q: Array, k: Array, v: Array, sight: _Sight) -> Float[Array, "b kv g s d"]:
    visible = sight.visible(sight.segment_ids, sight.segment_ids, starts=(0, 0))
    weights = jax.nn.softmax(jnp.where(visible, _capped(_scores(q, k), sight.softcap), _MASKED), axis=-1)
    return _mix(weights.astype(v.dtype), v).astype(q.dtype)


def _scores(q: Array, k: Array) -> Float[Array, "b kv g q k"]:
    return jnp.einsum("bkgqd,bksd->bkgqs", q, k, preferred_element_type=jnp.float32)


def _capped(scores: Array, softcap: float | None) -> Array:
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def _mix(weights: Array, v: Array) -> Float[Array, "b kv g q d"]:
    return jnp.einsum("bkgqs,bksd->bkgqd", weights, v, preferred_element_type=jnp.float32)


def _blockwise_rows(q: Array, k: Array, v: Array, sight: _Sight) -> Float[Array, "b kv g s d"]:
    """One row after the other: all rows' scores at once would go through memory rather than the cache."""

    def one_row(row: tuple[Array, Array, Array, Array]) -> Array:
        q, k, v, ids = (x[None] for x in row)
        return _blockwise_any_length(q, k, v, replace(sight, segment_ids=ids))[0]

    out: Array = lax.map(one_row, (q, k, v, sight.segment_ids))
    return out


def _blockwise_any_length(q: Array, k: Array, v: Array, sight: _Sight) -> Float[Array, "b kv g s d"]:
    length = q.shape[3]
    extra = -length % BLOCK
    q, k, v = (jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, extra), (0, 0)]) for x in (q, k, v))
    ids = jnp.pad(sight.segment_ids, ((0, 0), (0, extra)), constant_values=-1)
    return _blockwise(q, k, v, replace(sight, segment_ids=ids))[..., :length, :]


@jax.custom_vjp
def _blockwise(q: Array, k: Array, v: Array, sight: _Sight) -> Float[Array, "b kv g s d"]:
    return _blockwise_forward(q, k, v, sight)[0]


def _blockwise_forward(q: Array, k: Array, v: Array, sight: _Sight) -> tuple[Array, tuple[Any, ...]]:
    def query_block(i: Array) -> tuple[Array, Array]:
        q_i = _block(q, i)

        def key_block(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            total, peak, norm = carry
            scores = _masked_scores(q_i, _block(k, j), sight, (i, j))[0]
            higher = jnp.maximum(peak, scores.max(axis=-1))
            weights = jnp.exp(scores - higher[..., None])
            shrink = jnp.exp(peak - higher)
            mixed = _mix(weights.astype(v.dtype), _block(v, j))
            return total * shrink[..., None] + mixed, higher, norm * shrink + weights.sum(axis=-1)

        start = (jnp.zeros(q_i.shape, jnp.float32), jnp.full(q_i.shape[:-1], _MASKED), jnp.zeros(q_i.shape[:-1]))
        total, peak, norm = lax.fori_loop(sight.first_key_block(i), i + 1, key_block, start)
        return (total / norm[..., None]).astype(q.dtype), peak + jnp.log(norm)

    out, log_norm = lax.map(query_block, jnp.arange(q.shape[3] // BLOCK))
    out, log_norm = _join(out), _join(log_norm[..., None])
    return out, (q, k, v, sight, out, log_norm)


def _blockwise_backward(saved: tuple[Any, ...], d_out: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, sight, out, log_norm = saved
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    blocks = q.shape[3] // BLOCK

    def key_block(d_q: Array, j: Array) -> tuple[Array, tuple[Array, Array]]:
        k_j, v_j = _block(k, j), _block(v, j)

        def query_block(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            d_q, d_k, d_v = carry
            q_i, d_out_i = _block(q, i), _block(d_out, i)
            scores, slope = _masked_scores(q_i, k_j, sight, (i, j))
            weights = jnp.exp(scores - _block(log_norm, i))
            d_scores = weights * (_scores(d_out_i, v_j) - _block(delta, i)) * slope
            weights, d_scores = weights.astype(q.dtype), d_scores.astype(q.dtype)
            d_q = _add_block(d_q, _mix(d_scores, k_j), i)
            return d_q, d_k + _mix_back(d_scores, q_i), d_v + _mix_back(weights, d_out_i)

        zeros = jnp.zeros(k_j.shape, jnp.float32)
        d_q, d_k, d_v = lax.fori_loop(j, sight.past_query_block(j, blocks), query_block, (d_q, zeros, zeros))
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


def _masked_scores(q_i: Array, k_j: Array, sight: _Sight, place: tuple[Array, Array]) -> tuple[Array, Array | float]:
    """The scores of two blocks, and their derivative by the products of queries and keys where they are not masked."""
    ids = [lax.dynamic_slice_in_dim(sight.segment_ids, index * BLOCK, BLOCK, axis=1) for index in place]
    visible = sight.visible(ids[0], ids[1], starts=(place[0] * BLOCK, place[1] * BLOCK))
    capped = _capped(_scores(q_i, k_j), sight.softcap)
    slope = 1.0 if sight.softcap is None else 1.0 - (capped / sight.softcap) ** 2
    return jnp.where(visible, capped, _MASKED), slope


def _mix_back(weights: Array, x: Array) -> Float[Array, "b kv k d"]:
    return jnp.einsum("bkgqs,bkgqd->bksd", weights, x, preferred_element_type=jnp.float32)
