"""Engines over int8 weights say what the forward pass over the same weights, written out, says; on any mesh."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_engine import (
    SPEC,
    ask,
    naive_greedy,
    naive_logits,
    run,
    tensor_mesh,
    tiny_engine,
    tiny_params,
    tokens_of,
)
from tpuctl.engine.adapters import NONE
from tpuctl.engine.placement import place
from tpuctl.entrypoints.parity import check_parity, plain_forward
from tpuctl.nn.params import logical_axes
from tpuctl.nn.quantised import dequantised_tree, quantised_tree

UNTIED = replace(SPEC, tied_embedding=False)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [11], [7, 8, 9, 10]]


@pytest.mark.parametrize("tensor", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))])
def test_greedy_tokens_are_those_of_the_dequantised_forward_pass(tensor: int) -> None:
    engine = tiny_engine(UNTIED, tensor=tensor, real_vocab=UNTIED.vocab_size, quantised="int8")
    outputs = run(engine, *(ask(prompt, name=str(i)) for i, prompt in enumerate(PROMPTS)))
    params = dequantised_tree(quantised_tree(tiny_params(UNTIED)), dtype=jnp.float32)
    for i, prompt in enumerate(PROMPTS):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8, UNTIED, params=params)


@pytest.mark.slow
def test_parity_is_held_against_a_forward_pass_over_the_same_weights() -> None:
    kept = quantised_tree(tiny_params(UNTIED))
    exact = naive_logits(PROMPTS[0], UNTIED, params=dequantised_tree(kept, dtype=jnp.float32))
    axes = logical_axes(UNTIED, tensor=2, quantised="int8")
    forward = plain_forward(UNTIED, place(kept, axes, mesh=tensor_mesh(tensor=2), dtype=jnp.float32))
    np.testing.assert_allclose(forward(np.asarray(PROMPTS[0]), NONE), exact, rtol=1e-4, atol=1e-4)
    engine = tiny_engine(UNTIED, tensor=2, real_vocab=UNTIED.vocab_size, quantised="int8")
    told: list[str] = []
    check_parity(engine, forward, dtype="float32", tell=lambda phase, **_: told.append(phase))
    assert told == ["checked"]


def test_weights_that_are_placed_keep_int8_and_float32_scales() -> None:
    axes = logical_axes(UNTIED, tensor=2, quantised="int8")
    placed = place(quantised_tree(tiny_params(UNTIED)), axes, mesh=tensor_mesh(tensor=2), dtype=jnp.bfloat16)
    found = {str(leaf.dtype) for leaf in jax.tree.leaves(placed["layers"]["mlp"])}
    assert found == {"int8", "float32"}
    assert placed["embedding"].dtype == jnp.bfloat16
    key = placed["layers"]["attention"]["key"]
    assert [x.addressable_shards[0].data.shape for x in (key.values, key.scale)] == [(2, 32, 1, 16), (2, 1, 1, 16)]
