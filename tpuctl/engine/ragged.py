"""The ragged paged attention kernel for TPU that jax ships, behind ``PagedAttention``'s signature.

Compiles for TPU only. It reads pages and does not write them, so the new keys and values are scattered first. It wants
heads of whole lanes, and so many of them that they fill whole words (``modelspec.pages``): shorter ones are padded with
zeros, which changes no score, and what the heads that are not there say is dropped.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jaxtyping import Float

from tpuctl.engine.attention import PagedAttention
from tpuctl.engine.kept import kept
from tpuctl.nn.attention import NO_WINDOW, LayerView

_KEYS_PER_BLOCK = 1024
_QUERIES_PER_BLOCK = 32
_VMEM_BYTES = 100 << 20


def ragged_attend(
    q: Float[Array, "t h d"],
    k: Float[Array, "t kv d"],
    v: Float[Array, "t kv d"],
    *,
    attention: PagedAttention,
    layer: LayerView,
    pages: Float[Array, "pages size both lanes"],
) -> tuple[Float[Array, "t h d"], Array]:
    """Mixed values on already scaled queries, and the pages with the new keys and values."""
    layout, shape = attention.layout, attention.shape
    heads, lanes = pages.shape[2] // 2, pages.shape[3]
    key, value = _padded(k, heads, lanes), _padded(v, heads, lanes)
    both = jnp.stack([key, value], axis=2).reshape(k.shape[0], -1, lanes)  # the key and the value of a head in turn
    page = layout.places // shape.page_size + attention.first_page(layer)
    pages = pages.at[page, layout.places % shape.page_size].set(kept(both, pages.dtype))
    kernel = functools.partial(_kernel, softcap=layer.softcap, attention=attention)
    tables = layout.tables + attention.first_page(layer)
    asking = _padded(q, heads * (q.shape[1] // k.shape[1]), lanes)
    given = (asking, pages, layout.lengths, tables, layout.starts, layout.counts[1:2])
    if attention.window is None or attention.all_local:
        mixed = kernel(*given, window=attention.window)
    else:
        local = functools.partial(kernel, window=attention.window)
        mixed = lax.cond(layer.window < NO_WINDOW, local, functools.partial(kernel, window=None), *given)
    return mixed[:, : q.shape[1], : q.shape[2]], pages


def _kernel(*given: Array, window: int | None, softcap: float | None, attention: PagedAttention) -> Array:
    pages_per_sequence = attention.layout.tables.shape[1]
    # With a scale, even of 1, it converts what it reads to the queries' dtype.
    scale = None if given[1].dtype == given[0].dtype else 1.0
    mixed: Any = ragged_paged_attention(
        *given,
        sm_scale=1.0,
        sliding_window=window,
        soft_cap=softcap,
        k_scale=scale,
        v_scale=scale,
        # Said outright: its table of tuned sizes asks which device is attached, and there may be none.
        num_kv_pages_per_block=min(pages_per_sequence, max(1, _KEYS_PER_BLOCK // attention.shape.page_size)),
        num_queries_per_block=_QUERIES_PER_BLOCK,
        vmem_limit_bytes=_VMEM_BYTES,
    )
    return jax.lax.convert_element_type(mixed, given[0].dtype)


def _padded(x: Array, heads: int, lanes: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, lanes - x.shape[2])))
