"""The decoder: what it must not depend on."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_training import SPEC
from tpuctl.modelspec import ExpertSpec
from tpuctl.nn.attention import NO_WINDOW, RowAttention
from tpuctl.nn.decoder import ForwardOptions, TokenRows
from tpuctl.nn.layers import dropout
from tpuctl.nn.params import bind, init_params, logical_axes
from tpuctl.nn.partition import WHOLE
from tpuctl.nn.rotary import rotary


@pytest.fixture(scope="module")
def params():
    return init_params(SPEC, jax.random.key(0))


def one_document(tokens: np.ndarray) -> TokenRows:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return TokenRows(
        tokens=jnp.asarray(tokens), positions=jnp.asarray(positions), segment_ids=jnp.ones(tokens.shape, jnp.int32)
    )


def random_tokens(length: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SPEC.vocab_size, (1, length), dtype=np.int32)


def test_logits_do_not_depend_on_later_tokens(params):
    tokens = random_tokens(12)
    changed = tokens.copy()
    changed[0, 7:] = (changed[0, 7:] + 1) % SPEC.vocab_size
    decoder = bind(SPEC, params)
    before, after = decoder.logits(one_document(tokens)), decoder.logits(one_document(changed))
    np.testing.assert_array_equal(before[0, :7], after[0, :7])
    assert np.abs(before[0, 7:] - after[0, 7:]).max() > 1e-3


def test_logits_of_packed_documents_equal_those_of_each_alone(params):
    first, second = random_tokens(9), random_tokens(7, seed=1)
    packed = TokenRows(
        tokens=jnp.concatenate([first, second], axis=1),
        positions=jnp.concatenate([jnp.arange(9), jnp.arange(7)])[None],
        segment_ids=jnp.array([[1] * 9 + [2] * 7]),
    )
    decoder = bind(SPEC, params)
    together = decoder.logits(packed)
    np.testing.assert_allclose(together[:, :9], decoder.logits(one_document(first)), atol=2e-5)
    np.testing.assert_allclose(together[:, 9:], decoder.logits(one_document(second)), atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_params_have_a_head_only_if_it_is_not_tied(tied):
    axes = logical_axes(replace(SPEC, tied_embedding=tied))
    assert ("head" in axes) is not tied
    assert axes["embedding"] == ("vocab", "embed")
    assert axes["layers"]["attention"]["query"] == ("layer", "embed", "heads", "head_dim")


def test_matrices_of_a_layer_have_the_sharded_dimension_first_or_last_but_one():
    # Along any other, TPU shards are padded and gradients leave by all-reduce.
    spec = replace(SPEC, qkv_bias=True, experts=ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=16))
    for axes in jax.tree.leaves(logical_axes(spec)["layers"], is_leaf=lambda node: isinstance(node, tuple)):
        split = {"embed", "expert_embed"}.intersection(axes)
        assert not split or axes[1] in split or axes[-2] in split, axes


@pytest.mark.parametrize(
    ("tensor", "axis"), [(1, "kv_heads"), (2, "kv_heads"), (4, "shared_kv_heads"), (3, "kv_heads")]
)
def test_key_heads_are_shared_by_devices_that_are_a_multiple_of_them(tensor, axis):
    assert SPEC.num_kv_heads == 2
    assert logical_axes(SPEC, tensor=tensor)["layers"]["attention"]["key"] == ("layer", "embed", axis, "head_dim")


def test_run_gives_every_layer_its_view_and_carries_the_state(params):
    spec = replace(SPEC, sliding_window=4, local_layers=(1,))
    seen = RowAttention(segment_ids=jnp.ones((1, 8), jnp.int32), kernel="reference", window=4)

    def attend(q, k, v, *, layer, state):
        context, _ = seen(q, k, v, layer=layer, state=())
        return context, state.at[layer.index].set(layer.window)

    rows = one_document(random_tokens(8))
    decoder = bind(spec, params)
    nothing = jnp.zeros(spec.num_layers, jnp.int32)
    hidden, state = decoder.run(
        rows.tokens, rows.positions, attend=attend, state=nothing, options=ForwardOptions(remat="full")
    )
    assert state.tolist() == [NO_WINDOW, 4, NO_WINDOW]
    np.testing.assert_array_equal(hidden, decoder.hidden(rows, options=ForwardOptions(remat="full")))


@pytest.mark.parametrize("remat", ["full", "dots", "attention"])
def test_gradients_do_not_depend_on_what_is_rematerialised(params, remat):
    rows = one_document(random_tokens(8))

    def gradient(policy):
        def loss(params):
            return (bind(SPEC, params).hidden(rows, options=ForwardOptions(remat=policy)) ** 2).sum()

        return jax.jit(jax.grad(loss))(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient(remat), gradient("none"))


def test_hidden_is_in_the_dtype_of_the_weights(params):
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    hidden = bind(SPEC, low).hidden(one_document(random_tokens(4)), options=ForwardOptions())
    assert hidden.dtype == jnp.bfloat16


def test_rotary_scores_depend_on_the_distance_alone():
    positions = jnp.array([[3, 10, 103, 110]])
    turn = rotary(positions, head_dim=8, theta=10_000.0)
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 8), np.float32)
    q, k = (turn.rotate(jnp.broadcast_to(x, (1, 4, 1, 8)))[0, :, 0] for x in (query, key))
    np.testing.assert_allclose(q[1] @ k[0], q[3] @ k[2], rtol=1e-4)
    assert abs(float(q[1] @ k[0] - q[1] @ k[1])) > 1e-3


def test_dropout_of_a_row_depends_on_its_own_key_alone():
    keys = jax.random.split(jax.random.key(0), 4)
    x = jnp.ones((4, 6, 32))
    together = dropout(x, rate=0.25, keys=keys, partition=WHOLE)
    np.testing.assert_array_equal(together[2:3], dropout(x[2:3], rate=0.25, keys=keys[2:3], partition=WHOLE))
    assert set(np.unique(together)) == {0.0, np.float32(1 / 0.75)}
    assert abs(float((together == 0).mean()) - 0.25) < 0.05
