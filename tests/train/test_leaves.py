from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from tpuctl.train.checkpoint_errors import failed, missing_hosts
from tpuctl.train.leaves import LeafType, differences, leaf_types, named_leaves, with_leaves


def types(**shapes: tuple[int, ...]) -> dict[str, LeafType]:
    return {name.replace("__", "/"): LeafType(shape=shape, dtype="float32") for name, shape in shapes.items()}


def test_named_leaves_of_optax_state_then_with_leaves_gives_it_back() -> None:
    state = optax.adam(1e-3).init({"w": jnp.ones(3), "b": {"c": jnp.zeros(2)}})

    named = named_leaves(state)

    assert "0/mu/b/c" in named
    assert jax.tree.structure(with_leaves(state, named)) == jax.tree.structure(state)


def test_leaf_types_of_a_typed_key_names_its_type() -> None:
    assert str(leaf_types({"key": jax.random.key(0)})["key"]) == "key<fry>[]"


def test_differences_of_equal_tables_is_empty() -> None:
    assert differences(types(a=(1,)), types(a=(1,))) == []


def test_differences_names_whole_subtrees_once() -> None:
    found = differences(types(params__w=(1,)), types(params__w=(1,), ema__w=(1,), ema__b=(2,)))

    assert found == ["missing from the checkpoint: ema (2 arrays)"]


def test_differences_of_renamed_top_key_names_both_sides() -> None:
    found = differences(types(params__w=(1,)), types(model__w=(1,)))

    assert found == ["missing from the checkpoint: model", "only in the checkpoint: params"]


def test_differences_tells_the_first_few_of_each_kind() -> None:
    stored = {f"w{i}": LeafType(shape=(1,), dtype="float32") for i in range(9)}
    wanted = {f"w{i}": LeafType(shape=(2,), dtype="int32") for i in range(9)}

    found = differences(stored, wanted)

    assert found[0] == "w0: float32[1] in the checkpoint, int32[2] wanted"
    assert found[-1] == "and 6 more"
    assert len(found) == 4


BARRIER_ERROR = """DEADLINE_EXCEEDED: Barrier timed out. Id: save. This usually happens because a task triggered the
barrier too early or too slowly. Please look at the task logs (both timed out and first task) to debug further.
# of tasks that reached the barrier: 2/4.
The first task at the barrier: 0. Some timed out task names:
3
1

RPC: /xla.coordination.CoordinationService/Barrier"""


@pytest.mark.parametrize(("text", "hosts"), [(BARRIER_ERROR, [1, 3]), ("disk full", [])])
def test_missing_hosts_are_those_the_barrier_names(text: str, hosts: list[int]) -> None:
    assert missing_hosts(text) == hosts


def test_failed_names_the_hosts_behind_a_wrapped_time_out() -> None:
    wrapped = TimeoutError("Timed out while waiting for async_write_complete barrier.")
    wrapped.__cause__ = RuntimeError(BARRIER_ERROR)

    assert failed("checkpoint of step 4 failed", wrapped).message == "checkpoint of step 4 failed: missing hosts 1, 3"
