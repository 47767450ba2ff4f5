"""Splash attention: the Pallas TPU kernel that jax ships, behind ``attention.RowAttention``'s signature.

Forward and backward are block-sparse: blocks above the diagonal are never visited, nor, where all layers are local,
those before the window. Compiles for TPU only; off TPU it runs in interpret mode, which is how the tests compare it
with the reference.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Bool, Float

from tpuctl.nn.attention import CONTEXT_NAME, LayerView, RowAttention

_BLOCK = 512
_LANES = 128
_EVERYWHERE = 1 << 30
_GROWING_SIDE: tuple[Literal["before", "after"], ...] = ("after", "after", "before")


def splash_attend(
    q: Float[Array, "b s h d"],
    k: Float[Array, "b s kv d"],
    v: Float[Array, "b s kv d"],
    *,
    rows: RowAttention,
    layer: LayerView,
    interpret: bool = False,
) -> Float[Array, "b s h d"]:
    """Causal attention within segments on already scaled queries. ``s`` must be a multiple of 128."""
    head_major = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    call = _Call(heads=q.shape[2], length=q.shape[1], softcap=layer.softcap, interpret=interpret)
    ids = kernels.SegmentIds(q=rows.segment_ids, kv=rows.segment_ids)
    context: Any = jax.vmap(_kernel(call, rows, layer), in_axes=(0, 0, 0, 0))(*head_major, ids)
    return jnp.swapaxes(context, 1, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What a kernel is made for."""

    heads: int
    length: int
    softcap: float | None
    interpret: bool

    def kernel(self, mask: masks.Mask) -> kernels.SplashAttentionKernel:
        """The kernel in which every head has this mask."""
        kernel: kernels.SplashAttentionKernel = kernels.make_splash_mha(
            masks.MultiHeadMask([mask] * self.heads),
            head_shards=1,
            q_seq_shards=1,
            block_sizes=_block_sizes(self.length),
            attn_logits_soft_cap=self.softcap,
            residual_checkpoint_name=CONTEXT_NAME,
            interpret=self.interpret,
        )
        return kernel


def _kernel(call: _Call, rows: RowAttention, layer: LayerView) -> kernels.SplashAttentionKernel:
    shape = (call.length, call.length)
    if rows.window is None or rows.window >= call.length:
        return call.kernel(masks.CausalMask(shape))
    if rows.all_local:
        return call.kernel(masks.LocalMask(shape, (rows.window - 1, 0), 0))
    return _chosen(call, rows.window, is_local=layer.window <= rows.window)


def _chosen(call: _Call, window: int, *, is_local: Bool[Array, ""]) -> kernels.SplashAttentionKernel:
    """One kernel for local and global layers alike: which blocks it visits is data, and so is the kind of the layer.

    Two kernels under a ``lax.cond`` would each keep residuals of their own for the backward pass.
    """
    local, everywhere = (
        call.kernel(_LocalOrGlobal(length=call.length, window=window, everywhere=e)) for e in (False, True)
    )
    chosen = [
        _chosen_info(few, many, side=side, is_local=is_local)
        for few, many, side in zip(_mask_infos(local), _mask_infos(everywhere), _GROWING_SIDE, strict=True)
    ]
    return kernels.SplashAttentionKernel(*chosen, **everywhere.kwargs)


def _mask_infos(kernel: kernels.SplashAttentionKernel) -> tuple[Any, Any, Any]:
    return kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info


def _chosen_info(few: Any, many: Any, *, side: Literal["before", "after"], is_local: Bool[Array, ""]) -> Any:
    """A local layer's grid is smaller: it is filled up with steps that compute nothing and fetch nothing new."""
    extra = [large - small for small, large in zip(few.block_mask.shape, many.block_mask.shape, strict=True)]
    padding = [(e, 0) if side == "before" else (0, e) for e in extra]

    def choose(local: Array, everywhere: Array) -> Array:
        return jnp.where(is_local, local.astype(everywhere.dtype), everywhere)

    return many._replace(
        data_next=choose(jnp.pad(few.data_next, padding, mode="edge"), many.data_next),
        block_mask=choose(jnp.pad(few.block_mask, padding), many.block_mask),
        q_sequence=choose(few.q_sequence, many.q_sequence),
    )


def _sees(q_ids: Any, kv_ids: Any, *, window: int) -> Any:
    distance = (q_ids & (_EVERYWHERE - 1)) - kv_ids
    return (distance >= 0) & ((distance < window) | (q_ids >= _EVERYWHERE))


@dataclass(frozen=True)
class _LocalOrGlobal(masks.Mask):
    """The mask of a local or of a global layer, with one mask function for both.

    The kernel computes a mask from the indices of the queries, which are data, and of the keys, which it counts. So
    the queries' indices carry a bit that says whether they see ``everywhere`` before them.
    """

    length: int
    window: int
    everywhere: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, self.length

    @property
    def q_sequence(self) -> np.ndarray:
        """Indices of the queries, with their bit."""
        return np.arange(self.length, dtype=np.int32) | (_EVERYWHERE if self.everywhere else 0)

    @property
    def mask_function(self) -> Any:
        """Which keys are seen, from indices."""
        return functools.partial(_sees, window=self.window)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        queries, keys = index
        seen: np.ndarray = _sees(self.q_sequence[queries, None], np.arange(self.length)[None, keys], window=self.window)
        return seen


def _block_sizes(length: int) -> kernels.BlockSizes:
    block = max(size for size in range(_LANES, min(_BLOCK, length) + 1, _LANES) if length % size == 0)
    return kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
