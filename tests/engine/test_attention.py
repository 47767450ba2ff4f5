"""Paged attention by blocks against the reference, and both against softmax written out in numpy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tpuctl.engine.attention import PagedAttention, PagedLayout, PageShape, pages_array
from tpuctl.engine.batch import BatchSizes, Bucket, SlotTable
from tpuctl.engine.request import Request
from tpuctl.engine.sequence import Sequence, Work
from tpuctl.nn.attention import NO_WINDOW, LayerView

HEADS, KV_HEADS, DIM, PAGE, PAGES = 6, 2, 8, 4, 64
SHAPE = PageShape(
    num_layers=2, num_pages=PAGES + 1, page_size=PAGE, kv_heads=KV_HEADS, head_dim=DIM, dtype=jnp.dtype(jnp.float32)
)
SIZES = BatchSizes(
    max_running=8, pages_per_sequence=20, page_size=PAGE, scratch_page=PAGES, query_block=32, vocab_size=10
)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
CASES = {
    "decodes": [(7, 1), (0, 1), (32, 1), (63, 1)],
    "prompts": [(0, 5), (0, 40), (0, 33)],
    "mixed": [(9, 1), (50, 1), (0, 37), (12, 20), (3, 2)],
}


def _layout(parts: list[tuple[int, int]]) -> PagedLayout:
    pages = iter(np.random.default_rng(0).permutation(PAGES).tolist())
    work = []
    for slot, (start, count) in enumerate(parts):
        sequence = Sequence(Request(request_id=str(slot), prompt=(1,) * 80), index=0, arrival=slot, max_length=99)
        sequence.slot = slot
        sequence.pages = [next(pages) for _ in range(-(-(start + count) // PAGE))]
        work.append(Work(sequence=sequence, start=start, num_tokens=count, draws=True, fresh=True))
    batch = SlotTable(SIZES, eos_ids=()).batch(work, bucket=Bucket(tokens=112, rows=8))
    return jax.tree.map(jnp.asarray, PagedLayout(**batch.layout))


def _plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, window: int, cap: float | None) -> np.ndarray:
    """The last queries of one sequence against all its keys."""
    out = np.zeros(q.shape)
    for i in range(q.shape[0]):
        place = k.shape[0] - q.shape[0] + i
        first = max(0, place - window + 1)
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores = k[first : place + 1, kv] @ q[i, h]
            scores = scores if cap is None else cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ v[first : place + 1, kv] / weights.sum()
    return out


@pytest.mark.parametrize("parts", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("window", "cap"), [(NO_WINDOW, None), (6, 2.0)], ids=["full", "window-cap"])
@pytest.mark.parametrize("kernel", ["blocks", "reference"])
def test_attention_over_pages_equals_softmax(
    kernel: str, window: int, cap: float | None, parts: list[tuple[int, int]]
) -> None:
    compare(kernel, parts, window=window, cap=cap, shape=SHAPE)


@pytest.mark.parametrize("kernel", ["blocks", "reference"])
def test_attention_over_pages_of_eight_bits_equals_softmax_over_rounded_keys_and_values(kernel: str) -> None:
    compare(kernel, CASES["mixed"], window=6, cap=2.0, shape=replace(SHAPE, dtype=FP8))


def compare(kernel: str, parts: list[tuple[int, int]], *, window: int, cap: float | None, shape: PageShape) -> None:
    rng = np.random.default_rng(1)
    layout = _layout(parts)
    sequences = [rng.normal(size=(2, start + count, KV_HEADS, DIM)).astype(np.float32) for start, count in parts]
    rounded = [both.astype(shape.dtype).astype(np.float32) for both in sequences]
    total = sum(count for _, count in parts)
    q = np.zeros((1, 112, HEADS, DIM), np.float32)
    q[0, :total] = rng.normal(size=(total, HEADS, DIM))
    k, v = np.zeros((2, 1, 112, KV_HEADS, DIM), np.float32)
    pages = np.zeros(pages_array(shape, "blocks").shape, shape.dtype)
    at = 0
    for row, (start, count) in enumerate(parts):
        k[0, at : at + count], v[0, at : at + count] = sequences[row][:, start:]
        for place in range(start):  # what earlier steps have written, in layer 1
            page = int(layout.tables[row, place // PAGE]) + shape.num_pages
            key, value = sequences[row][:, place]
            pages[page, :KV_HEADS].reshape(KV_HEADS, DIM, PAGE)[:, :, place % PAGE] = key
            pages[page, KV_HEADS:].reshape(KV_HEADS, PAGE, DIM)[:, place % PAGE] = value
        at += count
    attention = PagedAttention(layout=layout, shape=shape, kernel=kernel)  # type: ignore[arg-type]
    layer = LayerView(index=jnp.asarray(1), window=jnp.asarray(window), softcap=cap)
    given = pages.view(pages_array(shape, "blocks").dtype)
    out, after = jax.jit(lambda q, k, v, pages: attention(q, k, v, layer=layer, state=pages))(q, k, v, given)
    at = 0
    for row, (_, count) in enumerate(parts):
        wanted = _plain(q[0, at : at + count], *rounded[row], window=window, cap=cap)
        np.testing.assert_allclose(out[0, at : at + count], wanted, atol=2e-5)
        at += count
    assert after.dtype == given.dtype
    assert not np.asarray(after[: shape.num_pages]).any(), "another layer's pages were written"
