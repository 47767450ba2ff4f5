"""Attention over paged keys and values: one signature; exact and plain, fast on CPU, and the kernels for TPU.

The tokens of a step lie in one row, sequence after sequence. Each of these classes is an
``Attend`` of the decoder: it writes a layer's new keys and values to their pages and mixes what each query sees,
its own sequence up to itself. Pages of all layers are one array, layer after layer, so that a scan over layers
updates it in place: the page ``i`` of a layer is number ``layer · num_pages + i``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, Int32

from tpuctl.engine.kept import kept
from tpuctl.modelspec.pages import page_heads, page_lanes
from tpuctl.nn.attention import LayerView

PagedKernel = Literal["reference", "blocks", "ragged"]

QUERY_BLOCK = 32
"""Queries of one prompt that ``blocks`` takes at a time."""

_MASKED = -1e30


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedLayout:
    """Which tokens of a step belong to whom, and where their keys and values lie. Padding stands last.

    Attributes:
        tables: Pages of each sequence, in order.
        starts: First token of each sequence in the step's row, and past the last.
        lengths: Tokens of each sequence up to and with this step; 0 for padding.
        places: Of each token's keys and values: page · page_size + place in the page.
        blocks: Sequence, first token in the row, its position, tokens: those of prompts, up to ``QUERY_BLOCK``, then
            those of one token.
        counts: Blocks of prompts, sequences, blocks of one token.
    """

    tables: Int32[Array, "s p"]
    starts: Int32[Array, " s+1"]
    lengths: Int32[Array, " s"]
    places: Int32[Array, " t"]
    blocks: Int32[Array, "n 4"]
    counts: Int32[Array, " 3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageShape:
    """One device's pages. ``num_pages`` per layer, the last of which takes what padding writes.

    ``dtype`` is theirs, which may be narrower than that of what is written and read.
    """

    num_layers: int
    num_pages: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedAttention:
    """An ``Attend`` over pages. ``state`` is the array of ``pages_shape``.

    ``window`` is that of the model's local layers, ``None`` where it has none; ``all_local`` says that it has no
    other layers. ``ragged`` wants to know both before any layer runs. ``first_layer`` is where in the model the
    decoder's layers begin, if it has but some of them.
    """

    layout: PagedLayout
    first_layer: Array | int = 0
    window: int | None = field(default=None, metadata={"static": True})
    all_local: bool = field(default=False, metadata={"static": True})
    shape: PageShape = field(metadata={"static": True})
    kernel: PagedKernel = field(metadata={"static": True})

    def __call__(
        self,
        q: Float[Array, "1 t h d"],
        k: Float[Array, "1 t kv d"],
        v: Float[Array, "1 t kv d"],
        *,
        layer: LayerView,
        state: Array,
    ) -> tuple[Float[Array, "1 t h d"], Array]:
        """See ``Attend``."""
        if self.kernel == "ragged":
            from tpuctl.engine.ragged import ragged_attend  # Pallas costs a second of import that CPU runs need not pay

            context, state = ragged_attend(q[0], k[0], v[0], attention=self, layer=layer, pages=state)
            return context[None], state
        state = _write(state, k[0], v[0], attention=self, layer=layer)
        mix = _reference if self.kernel == "reference" else _by_blocks
        return mix(_heads_first(q[0], k.shape[2]), state, self, layer)[None].astype(q.dtype), state

    def first_page(self, layer: LayerView) -> Array:
        """Number of a layer's page 0."""
        return (self.first_layer + layer.index) * self.shape.num_pages


for _node in (PagedLayout, PagedAttention):
    jax.tree_util.register_dataclass(_node)


def kernel_for(platform: str) -> PagedKernel:
    """The implementation for a device platform as jax names it."""
    return "ragged" if platform == "tpu" else "blocks"


def pages_array(shape: PageShape, kernel: PagedKernel) -> jax.ShapeDtypeStruct:
    """The array of all pages of one device, its heads along ``heads_axis``.

    But for the TPU kernel numbers of eight bits lie in it as whole numbers: XLA on CPU would convert the whole array
    to wider ones, and back, for each write.
    """
    pages, item_bytes = shape.num_layers * shape.num_pages, jnp.dtype(shape.dtype).itemsize
    if kernel == "ragged":
        heads, lanes = page_heads(shape.kv_heads, item_bytes=item_bytes), page_lanes(shape.head_dim)
        return jax.ShapeDtypeStruct((pages, shape.page_size, 2 * heads, lanes), shape.dtype)
    dtype = jnp.uint8 if item_bytes == 1 else shape.dtype
    return jax.ShapeDtypeStruct((pages, 2 * shape.kv_heads, shape.page_size * shape.head_dim), dtype)


def heads_axis(kernel: PagedKernel) -> int:
    """In a page, keys or values of one head lie together; for the TPU kernel, those of one token."""
    return 2 if kernel == "ragged" else 1


def _write(pages: Array, k: Array, v: Array, *, attention: PagedAttention, layer: LayerView) -> Array:
    shape = attention.shape
    page = attention.layout.places // shape.page_size + attention.first_page(layer)
    place, heads = attention.layout.places % shape.page_size, shape.kv_heads
    by_channel = pages.reshape(*pages.shape[:2], shape.head_dim, shape.page_size)
    keys, values = (lax.bitcast_convert_type(kept(x, shape.dtype), pages.dtype) for x in (k, v))
    by_channel = by_channel.at[page, :heads, :, place].set(keys)
    by_token = by_channel.reshape(*pages.shape[:2], shape.page_size, shape.head_dim)
    by_token = by_token.at[page, heads:, place].set(values)
    return by_token.reshape(pages.shape)


def _keys_and_values(
    pages: Array, shape: PageShape, *, dtype: Any
) -> tuple[Float[Array, "*n kv d size"], Float[Array, "*n kv size d"]]:
    """Of some pages, in ``dtype``, as they lie: keys channel by channel, so that products with a query run along the
    tokens, and values token by token. (Both ways along what is long: XLA's CPU code takes half the time.)"""
    keys, values = jnp.split(lax.bitcast_convert_type(pages, shape.dtype).astype(dtype), 2, axis=-2)
    leading = keys.shape[:-1]
    return (
        keys.reshape(*leading, shape.head_dim, shape.page_size),
        values.reshape(*leading, shape.page_size, shape.head_dim),
    )


def _heads_first(q: Float[Array, "t h d"], kv_heads: int) -> Float[Array, "kv g t d"]:
    return q.reshape(q.shape[0], kv_heads, -1, q.shape[2]).transpose(1, 2, 0, 3)


def _tokens_first(context: Float[Array, "kv g t d"]) -> Float[Array, "t h d"]:
    return context.transpose(2, 0, 1, 3).reshape(context.shape[2], -1, context.shape[3])


def _reference(q: Float[Array, "kv g t d"], pages: Array, attention: PagedAttention, layer: LayerView) -> Array:
    """Every token unpages the whole table of its sequence: exact and slow."""
    layout, size = attention.layout, attention.shape.page_size
    token = jnp.arange(q.shape[2])
    owner = jnp.sum(token[:, None] >= layout.starts[None, 1:], axis=1).clip(max=layout.lengths.shape[0] - 1)
    position = layout.lengths[owner] - layout.starts[owner + 1] + token
    own = pages[layout.tables[owner] + attention.first_page(layer)]
    keys, values = _keys_and_values(own, attention.shape, dtype=jnp.float32)
    scores = jnp.einsum("kgtd,tpkds->kgtps", q.astype(jnp.float32), keys)
    scores = _capped(scores.reshape(*scores.shape[:3], -1), layer)
    seen = _seen(position[:, None], jnp.arange(layout.tables.shape[1] * size)[None, :], layer)
    weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
    weights = weights.reshape(*weights.shape[:3], -1, size)
    return _tokens_first(jnp.einsum("kgtps,tpksd->kgtd", weights, values))


def _by_blocks(q: Float[Array, "kv g t d"], pages: Array, attention: PagedAttention, layer: LayerView) -> Array:
    """Queries of one sequence at a time against its pages, one at a time (Dao et al. 2022): no page is ever copied
    to another place, and padding costs nothing, since the loops are as long as there is something to do."""
    layout = attention.layout
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, QUERY_BLOCK), (0, 0)))  # a last block may reach beyond the tokens

    def some(width: int) -> Callable[[Array, Array], Array]:
        return lambda i, out: _block(padded, out, pages, (attention, layer, layout.blocks[i]), width=width)

    wide, single = layout.counts[0], layout.counts[2]
    out = jnp.zeros(padded.shape, jnp.float32)
    out = lax.fori_loop(0, wide, some(QUERY_BLOCK), out)
    out = lax.fori_loop(wide, wide + single, some(1), out)
    return _tokens_first(out[:, :, : q.shape[2]])


def _block(q: Array, out: Array, pages: Array, place: tuple[PagedAttention, LayerView, Array], *, width: int) -> Array:
    """``out`` with the rows of one block; rows past its end are garbage, which later blocks overwrite."""
    attention, layer, (sequence, first, position, count) = place
    size = attention.shape.page_size
    mine = lax.dynamic_slice_in_dim(q, first, width, axis=2)
    positions = position + jnp.arange(width)[:, None]
    table = attention.layout.tables[sequence] + attention.first_page(layer)

    def page(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, peak, norm = carry
        here = lax.dynamic_index_in_dim(pages, table[i], keepdims=False)
        keys, values = _keys_and_values(here, attention.shape, dtype=mine.dtype)
        scores = jnp.einsum("kgqd,kds->kgqs", mine, keys, preferred_element_type=jnp.float32)
        seen = _seen(positions, i * size + jnp.arange(size)[None, :], layer)
        scores = jnp.where(seen, _capped(scores, layer), _MASKED)
        higher = jnp.maximum(peak, scores.max(axis=-1))
        weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
        shrink = jnp.exp(peak - higher)
        mixed = jnp.einsum("kgqs,ksd->kgqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        return total * shrink[..., None] + mixed, higher, norm * shrink + weights.sum(axis=-1)

    start = (jnp.zeros(mine.shape, jnp.float32), jnp.full(mine.shape[:-1], _MASKED), jnp.zeros(mine.shape[:-1]))
    first_page = jnp.maximum(position - layer.window + 1, 0) // size
    total, _, norm = lax.fori_loop(first_page, (position + count - 1) // size + 1, page, start)
    context = total / jnp.maximum(norm, 1e-30)[..., None]  # rows past the block's end may have seen nothing
    return lax.dynamic_update_slice_in_dim(out, context, first, axis=2)


def _seen(query: Int[Array, "q 1"], key: Int[Array, "1 k"], layer: LayerView) -> Array:
    return (key <= query) & (query - key < layer.window)


def _capped(scores: Array, layer: LayerView) -> Array:
    return scores if layer.softcap is None else layer.softcap * jnp.tanh(scores / layer.softcap)
