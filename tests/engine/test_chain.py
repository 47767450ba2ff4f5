"""The step as a chain of programs: layers in groups, and what each group takes of the weights."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_engine import SPEC, ask, naive_greedy, run, tiny_engine, tokens_of
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.placement import in_groups, layer_groups, stacked
from tpuctl.modelspec import ExpertSpec
from tpuctl.nn.layers import project
from tpuctl.nn.params import init_params
from tpuctl.nn.transposed import Transposed

MIXED = replace(
    SPEC,
    num_layers=7,
    local_layers=(0, 3),
    sliding_window=8,
    experts=ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=24, dense_layers=(0, 6)),
)


@pytest.mark.parametrize(
    ("layers", "sizes"), [(30, [6] * 5), (32, [4] * 8), (28, [4] * 7), (2, [2]), (23, [6, 6, 6, 5])]
)
def test_layers_come_in_groups_of_one_size_where_they_divide(layers: int, sizes: list[int]) -> None:
    groups = layer_groups(replace(SPEC, num_layers=layers))
    assert [group.spec.num_layers for group in groups] == sizes
    assert [group.first for group in groups] == np.cumsum([0, *sizes[:-1]]).tolist()
    assert len({group.spec for group in groups}) == len(set(sizes)), "like groups share a program"


def test_groups_of_a_mixed_model_hold_each_layers_own_weights() -> None:
    params = init_params(MIXED, jax.random.key(0))
    weights = in_groups(MIXED, params)
    assert [group.spec.mlp_layers for group in layer_groups(MIXED)] == [(0,), (0,)]
    last = stacked(weights["groups"][1])
    assert "experts" not in last
    np.testing.assert_array_equal(last["mlp"]["down"][0], params["layers"]["mlp"]["down"][1])
    np.testing.assert_array_equal(last["mlp"]["up"].matrix[0], params["layers"]["mlp"]["up"][1].T)
    first = stacked(weights["groups"][0])
    np.testing.assert_array_equal(first["experts"]["up"], params["layers"]["experts"]["up"])


@pytest.mark.slow
def test_mixed_model_in_unequal_groups_equals_the_forward_pass() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    outputs = run(tiny_engine(MIXED), ask(prompt))
    assert tokens_of(outputs["r"]) == naive_greedy(prompt, 8, MIXED)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_transposed_weight_gives_the_same_product(dtype: jnp.dtype) -> None:
    x, weight = (jax.random.normal(jax.random.key(i), shape, dtype) for i, shape in enumerate([(1, 5, 32), (32, 4, 8)]))
    kept = Transposed(matrix=weight.reshape(32, -1).T, outside=(4, 8))
    wide = [np.asarray(project(x, w), np.float32) for w in (weight, kept)]
    np.testing.assert_allclose(*wide, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("least", "running", "tokens"), [(1, 256, 512), (2, 16, 256), (8, 100, 300), (1, 1, 1), (2, 1, 2)]
)
def test_every_step_that_may_be_has_a_shape_and_these_are_few(least: int, running: int, tokens: int) -> None:
    options = EngineOptions(
        max_length=9, num_pages=9, min_step_tokens=least, max_running=running, max_step_tokens=tokens
    )
    shapes = buckets(options)
    assert all(shape.rows % least == shape.tokens % least == 0 and shape.rows <= shape.tokens for shape in shapes)
    assert max(shape.tokens for shape in shapes) >= tokens
    assert max(shape.rows for shape in shapes) >= running
    assert len(shapes) <= 14
