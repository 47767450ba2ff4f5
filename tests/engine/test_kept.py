"""Keys and values in pages of eight bits: how far they are off, and engines over them on any mesh."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import get_min_heads_per_blk

from tests.fakes.tiny_engine import SIZES, SPEC, ask, naive_logits, run, tiny_engine, tiny_params, tokens_of
from tpuctl.engine.adapters import NONE
from tpuctl.engine.kept import kept, page_dtype
from tpuctl.engine.lockstep import Forward
from tpuctl.engine.request import Output
from tpuctl.entrypoints.parity import check_parity, plain_forward
from tpuctl.errors import JobFailedError
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.pages import page_heads

FP8 = page_dtype("fp8", dtype=jnp.float32)
WINDOWED = replace(SPEC, name="windowed", sliding_window=9, local_layers=(0,), attention_softcap=4.0)
CLOSE = 5e-3
"""Of log probabilities. A number on the edge of two steps may fall to the other: that has changed one by 1.3e-3."""
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 2, [11], [7, 8, 9, 10]]


def test_numbers_are_off_by_a_sixteenth_at_most_and_cut_to_the_largest() -> None:
    numbers = np.concatenate([np.geomspace(2**-6, 448, 5000), np.zeros(1)]).astype(np.float32)
    found = np.asarray(kept(jnp.asarray(numbers), FP8).astype(jnp.float32))
    np.testing.assert_array_equal(found, numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert np.abs(found - numbers).max() > 0
    np.testing.assert_array_less(np.abs(found - numbers), numbers / 16 + 1e-12)
    beyond = jnp.asarray([449.0, 1e6, jnp.inf, -465.0, -jnp.inf])
    assert kept(beyond, FP8).astype(jnp.float32).tolist() == [448, 448, 448, -448, -448]
    assert jnp.isnan(kept(jnp.asarray(jnp.nan), FP8).astype(jnp.float32)), "a fault in the model must show"
    assert kept(beyond, jnp.bfloat16)[2] == jnp.inf


def rounded_logprobs(spec: ModelSpec, tokens: list[int]) -> np.ndarray:
    """By the whole forward pass over rounded keys and values, padded to one length so that it compiles once."""
    whole = np.zeros(SIZES["max_length"], np.int32)
    whole[: len(tokens)] = tokens
    return _log_softmax(forward(spec)(whole, NONE).logits[: len(tokens)])


@functools.cache
def forward(spec: ModelSpec) -> Forward:
    return plain_forward(spec, tiny_params(spec), kv_dtype="fp8")


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(logits, axis=-1))


def hold(outputs: list[Output], prompt: list[int], spec: ModelSpec) -> None:
    """The log probability of each token, of the prompt's and of those made, is that over rounded keys and values."""
    tokens = prompt + tokens_of(outputs)
    told = [entry.logprob for output in outputs for entry in (*output.prompt_logprobs, *output.logprobs)]
    places = np.arange(len(tokens) - 1), tokens[1:]
    wanted = rounded_logprobs(spec, tokens)[places]
    np.testing.assert_allclose(told, wanted, atol=CLOSE)
    exact = _log_softmax(naive_logits(tokens, spec))[places]
    assert len(tokens) < 12 or np.abs(wanted - exact).max() > 10 * CLOSE, "nothing was rounded"


@pytest.mark.parametrize(
    ("spec", "tensor"),
    [(SPEC, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((WINDOWED, 1), (SPEC, 2), (SPEC, 4)))],
    ids=["whole", "windows", "tensor-2", "shared-heads"],
)
def test_engine_says_what_the_forward_pass_over_rounded_keys_and_values_says(spec: ModelSpec, tensor: int) -> None:
    engine = tiny_engine(spec, tensor=tensor, kv_dtype="fp8")
    asked = [ask(prompt, name=str(i), logprobs=0, prompt_logprobs=0) for i, prompt in enumerate(PROMPTS)]
    outputs = run(engine, *asked)
    for i, prompt in enumerate(PROMPTS):
        hold(outputs[str(i)], prompt, spec)


def test_found_prefixes_and_preemption_change_nothing() -> None:
    shared = PROMPTS[0] + list(range(20))
    asked = [ask([*shared, i], name=str(i), max_tokens=20, logprobs=0) for i in range(6)]
    cold, few = tiny_engine(kv_dtype="fp8", prefix_cache=False), tiny_engine(kv_dtype="fp8", num_pages=40)
    wanted = run(cold, *asked)
    for _ in range(2):
        got = run(few, *asked)
        for name, outputs in wanted.items():
            assert tokens_of(got[name]) == tokens_of(outputs)
    assert few.stats().preemptions > 0
    assert few.stats().cached_tokens > 6 * 40


def test_parity_is_held_against_a_forward_pass_over_rounded_keys_and_values() -> None:
    engine = tiny_engine(real_vocab=SPEC.vocab_size, kv_dtype="fp8")
    told: list[str] = []
    check_parity(engine, forward(SPEC), dtype="float32", tell=lambda phase, **_: told.append(phase))
    assert told == ["checked"]
    other = jax.tree.map(lambda x: x, tiny_params())
    other["layers"]["attention"]["value"] = other["layers"]["attention"]["value"][:, :, ::-1]
    with pytest.raises(JobFailedError, match="from the plain forward pass"):
        check_parity(engine, plain_forward(SPEC, other, kv_dtype="fp8"), dtype="float32", tell=lambda *_, **__: None)


@pytest.mark.parametrize("tensor", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_pages_take_a_byte_a_number(tensor: int) -> None:
    pages = tiny_engine(tensor=tensor, kv_dtype="fp8")._runner._state["pages"]  # type: ignore[attr-defined]
    assert pages.dtype == jnp.uint8, "XLA on CPU would convert all of them for each write"
    heads = max(SPEC.num_kv_heads, tensor)
    a_page = 2 * SPEC.num_layers * heads * SPEC.head_dim * SIZES["page_size"]
    assert pages.nbytes == (SIZES["num_pages"] + 1) * a_page


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.bfloat16, jnp.float32])
def test_pages_have_the_fewest_heads_that_the_kernel_takes(dtype: Any) -> None:
    def takes(heads: int) -> bool:
        try:
            get_min_heads_per_blk(heads, 2 * heads, jnp.bfloat16, dtype)
        except ValueError:
            return False
        return True

    for heads in range(1, 40):
        found = page_heads(heads, item_bytes=jnp.dtype(dtype).itemsize)
        assert [takes(count) for count in range(heads, found + 1)] == [False] * (found - heads) + [True]
