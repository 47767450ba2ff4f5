"""What KV pages take on a TPU: its ragged attention kernel wants heads of whole lanes, and so many of them. No jax."""

from __future__ import annotations

from tpuctl.modelspec.spec import ModelSpec

_LANES = 128
_SUBLANES = 8
_WORD_BYTES = 4


def page_bytes(spec: ModelSpec, *, devices: int, item_bytes: int, page_size: int) -> int:
    """One page of all layers over all devices that share the heads, of ``page_size`` tokens.

    Key heads that are fewer than the devices are held by several.
    """
    heads = page_heads(-(-spec.num_kv_heads // devices), item_bytes=item_bytes)
    return 2 * spec.num_layers * devices * heads * page_lanes(spec.head_dim) * item_bytes * page_size


def page_heads(kv_heads: int, *, item_bytes: int) -> int:
    """Key heads in a device's pages: its own, and as many of zeros as the kernel wants beside them.

    It reads words of 32 bits, each with a key's number and a value's: two of each where they have eight bits. And the
    words of a token lie in 1, 2, 4 or a multiple of 8 rows.
    """

    def fits(heads: int) -> bool:
        words, rest = divmod(2 * heads * item_bytes, _WORD_BYTES)
        return not rest and (words in (1, 2, 4) or words % _SUBLANES == 0)

    return next(heads for heads in range(kv_heads, kv_heads + 2 * _SUBLANES) if fits(heads))


def page_lanes(head_dim: int) -> int:
    """Numbers that a head takes."""
    return -(-head_dim // _LANES) * _LANES
