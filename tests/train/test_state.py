"""The training state: where it lies, and that it is the same wherever it lies."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_training import SPEC, make_plan
from tpuctl.mesh import MeshError, create_mesh
from tpuctl.train.state import abstract_state, init_state

MESH = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.fixture(scope="module")
def sharded():
    plan = make_plan(mesh=MESH)
    return init_state(plan, create_mesh(plan.mesh))


@pytest.mark.slow
def test_init_state_on_a_mesh_equals_one_device(sharded):
    plan = make_plan()
    alone = init_state(plan, create_mesh(plan.mesh, devices=jax.devices()[:1]))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(sharded), jax.device_get(alone))


def test_init_state_puts_on_each_device_its_share_of_weights_and_moments(sharded):
    for tree in (sharded.params, *(moment for moment in (sharded.opt_state[0].mu, sharded.opt_state[0].nu))):
        for leaf in (tree["layers"]["mlp"]["up"], tree["layers"]["attention"]["out"], tree["embedding"], tree["head"]):
            assert leaf.addressable_shards[0].data.size * 8 == leaf.size


def test_state_is_plain_arrays_with_f32_weights_and_moments_whatever_the_compute_dtype():
    plan = make_plan(mesh=MESH, compute_dtype="bfloat16", dropout=0.1)
    state = abstract_state(plan, create_mesh(plan.mesh))
    floats = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.ndim}
    assert floats == {jnp.dtype("float32")}
    assert (state.key.dtype, state.key.shape) == (jnp.uint32, (2,))
    assert (state.cursor.dtype, state.cursor.shape) == (jnp.int32, (8, 4))
    assert not any(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(state))


def test_abstract_state_describes_what_init_state_makes(sharded):
    plan = make_plan(mesh=MESH)

    def describe(leaf):
        return leaf.shape, leaf.dtype, leaf.sharding

    abstract = abstract_state(plan, create_mesh(plan.mesh))
    assert jax.tree.map(describe, abstract) == jax.tree.map(describe, sharded)


def test_step_key_is_a_function_of_seed_and_step(sharded):
    def words(state):
        return jax.random.key_data(state.step_key()).tolist()

    later = replace(sharded, step=sharded.step + 1)
    restored = replace(sharded, key=jnp.asarray(np.asarray(sharded.key)))
    assert words(restored) == words(sharded) != words(later)


def test_abstract_state_of_a_model_that_does_not_divide_is_refused():
    plan = make_plan(mesh={"tensor": 4}, model=replace(SPEC, num_heads=12, num_kv_heads=6))
    with pytest.raises(MeshError, match="kv_heads of size 6 does not divide into 4 parts over tensor"):
        abstract_state(plan, create_mesh(plan.mesh, devices=jax.devices()[:4]))
