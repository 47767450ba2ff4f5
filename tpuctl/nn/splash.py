"""Splash attention: the Pallas TPU kernel that jax ships, behind ``attention.attend``'s signature.

Forward and backward are block-sparse: blocks above the diagonal are never visited. Compiles for TPU only; off TPU
it runs in interpret mode, which is how the tests compare it with the reference.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Float, Int

from tpuctl.nn.attention import CONTEXT_NAME

_BLOCK = 512
_LANES = 128


def splash_attend(
    q: Float[Array, "b s h d"],
    k: Float[Array, "b s kv d"],
    v: Float[Array, "b s kv d"],
    *,
    segment_ids: Int[Array, "b s"],
    interpret: bool = False,
) -> Float[Array, "b s h d"]:
    """Causal attention within segments on already scaled queries. ``s`` must be a multiple of 128."""
    head_major = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    kernel = _kernel(heads=q.shape[2], length=q.shape[1], interpret=interpret)
    ids = kernels.SegmentIds(q=segment_ids, kv=segment_ids)
    context: Any = jax.vmap(kernel)(*head_major, ids)
    return jnp.swapaxes(context, 1, 2)


def _kernel(*, heads: int, length: int, interpret: bool) -> kernels.SplashAttentionKernel:
    mask = masks.MultiHeadMask([masks.CausalMask((length, length)) for _ in range(heads)])
    kernel: kernels.SplashAttentionKernel = kernels.make_splash_mha(
        mask,
        head_shards=1,
        q_seq_shards=1,
        block_sizes=_block_sizes(length),
        residual_checkpoint_name=CONTEXT_NAME,
        interpret=interpret,
    )
    return kernel


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
