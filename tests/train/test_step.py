"""The training step: on any mesh, in any number of microbatches, what one device computes from the definition."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.tiny_training import OPTIM, SPEC, make_batch, make_plan
from tpuctl.mesh import MeshError, create_mesh
from tpuctl.modelspec import ExpertSpec
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import bind
from tpuctl.plan.schema import TrainingPlan, plan_dumps, plan_loads
from tpuctl.train.batch import HostBatch
from tpuctl.train.state import TrainState, abstract_state, init_state, state_shardings
from tpuctl.train.step import abstract_batch, make_eval_step, make_global_batch, make_train_step

# Each compiles a step for eight devices, which takes seconds: every day one of each kind.
MESHES = [
    pytest.param({"data": 8}, marks=pytest.mark.slow),
    {"slice": 2, "fsdp": 4},
    {"fsdp": 4, "tensor": 2},
    pytest.param({"slice": 2, "data": 2, "tensor": 2}, marks=pytest.mark.slow),
    pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
]


def mesh_of(plan: TrainingPlan):
    count = math.prod((plan.mesh.slice, plan.mesh.data, plan.mesh.fsdp, plan.mesh.expert, plan.mesh.tensor))
    return create_mesh(plan.mesh, devices=jax.devices()[:count])


@pytest.fixture(scope="module")
def start():
    """``start(plan)``: a new state, made once per model on one device and laid out for the plan's mesh."""
    made: dict[object, TrainState] = {}

    def lay_out(plan: TrainingPlan) -> TrainState:
        if plan.model not in made:
            alone = make_plan(model=plan.model)
            made[plan.model] = jax.device_get(init_state(alone, mesh_of(alone)))
        cursor = np.zeros((plan.train.global_batch, 4), np.int32)
        return jax.device_put(replace(made[plan.model], cursor=cursor), state_shardings(plan, mesh_of(plan)))

    return lay_out


@functools.cache
def compiled_step(plan: str):
    """Tests that run the same plan share its compiled step."""
    return make_train_step(plan_loads(plan), mesh_of(plan_loads(plan)))


def run_steps(plan: TrainingPlan, state: TrainState, batches: list[HostBatch], *, stop_vote: bool = False):
    """Final state and each step's metrics, as NumPy."""
    mesh = mesh_of(plan)
    step = compiled_step(plan_dumps(plan))
    seen = []
    for batch in batches:
        rows = plan.train.global_batch
        state, metrics = step(state, make_global_batch(batch, mesh, global_batch=rows, stop_vote=stop_vote))
        seen.append(jax.device_get(metrics))
    return jax.device_get(state), seen


def assert_trees_close(left, right, *, rtol=0.0, atol=0.0):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), left, right)


def first_moments(state: TrainState):
    """After one step from zero these are the clipped gradients, times 1 - beta1."""
    return state.opt_state[0].mu


def shapes_on_one_device(jaxpr, *, inside: bool = False):
    """Shapes of everything computed inside ``shard_map``, loops and functions included."""
    for equation in jaxpr.eqns:
        if inside:
            yield from (variable.aval.shape for variable in equation.outvars)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda node: hasattr(node, "eqns")):
            if inner := getattr(value, "jaxpr", value if hasattr(value, "eqns") else None):
                yield from shapes_on_one_device(inner, inside=inside or equation.primitive.name == "shard_map")


def counted(batch: HostBatch, tokens: list[int]) -> HostBatch:
    """``batch`` with so many counted tokens in each row."""
    mask = np.arange(batch.tokens.shape[1])[None, :] < np.array(tokens)[:, None]
    return replace(batch, loss_mask=mask.astype(np.int32))


@pytest.fixture(scope="module")
def one_device(start):
    plan = make_plan(z_loss=1e-3)
    return run_steps(plan, start(plan), [make_batch(seed=i) for i in range(3)])


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "-".join(f"{k}{v}" for k, v in m.items()))
def test_train_step_on_a_mesh_equals_one_device(mesh, one_device, start):
    plan = make_plan(mesh=mesh, z_loss=1e-3)
    state, metrics = run_steps(plan, start(plan), [make_batch(seed=i) for i in range(3)])
    expected_state, expected = one_device
    for got, want in zip(metrics, expected, strict=True):
        assert got["tokens"] == want["tokens"] == 8 * 29
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-5)
        np.testing.assert_allclose(got["grad_norm"], want["grad_norm"], rtol=2e-4)
    # Adam divides by the root of the second moment, so weights whose gradient is nearly 0 magnify rounding.
    assert_trees_close(state.params, expected_state.params, atol=2e-3)
    assert_trees_close(first_moments(state), first_moments(expected_state), rtol=2e-3, atol=2e-6)


FAMILIES = {
    "tied": ({"tied_embedding": True}, {"data": 2, "fsdp": 2, "tensor": 2}),
    # Two key heads for four devices, which share them by twos.
    "gemma": (
        {
            "tied_embedding": True,
            "embedding_scale": 32**0.5,
            "norm_plus_one": True,
            "sandwich_norms": True,
            "qk_norm": True,
            "attention_softcap": 2.0,
            "logits_softcap": 3.0,
            "sliding_window": 5,
            "local_layers": (0, 2),
            "local_rope_theta": 100.0,
        },
        {"fsdp": 2, "tensor": 4},
    ),
    "gpt2": (
        {
            "num_kv_heads": 1,
            "positions": "learned",
            "max_positions": 40,
            "norm": "layer",
            "qkv_bias": True,
            "attention_out_bias": True,
            "mlp_bias": True,
            "mlp_gated": False,
            "activation": "gelu_tanh",
        },
        {"data": 2, "tensor": 4},
    ),
    "experts": (
        {"experts": ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=16, dense_layers=(1,))},
        {"data": 2, "fsdp": 2, "tensor": 2},
    ),
    "experts dealt out": (
        {"experts": ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=16, dense_layers=(1,))},
        {"data": 2, "expert": 2, "tensor": 2},
    ),
}


@pytest.mark.parametrize(
    "family", [name if name == "gemma" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_train_step_of_a_family_on_a_mesh_equals_one_device(family, start):
    fields, mesh = FAMILIES[family]
    model = replace(SPEC, **fields)
    alone, split = make_plan(model=model), make_plan(model=model, mesh=mesh)
    state, (got,) = run_steps(split, start(split), [make_batch()])
    expected, (want,) = run_steps(alone, start(alone), [make_batch()])
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-5)
    assert_trees_close(first_moments(state), first_moments(expected), atol=2e-6)


def test_train_step_loss_and_gradients_equal_the_definition(start):
    plan, batch = make_plan(optim=replace(OPTIM, clip_norm=None)), make_batch()
    params = start(plan).params

    def mean_nats(params):
        rows = TokenRows(tokens=batch.tokens, positions=batch.positions, segment_ids=batch.segment_ids)
        log_probs = jax.nn.log_softmax(bind(plan.model, params).logits(rows))
        nats = -jnp.take_along_axis(log_probs, batch.targets[..., None], -1)[..., 0]
        return (nats * batch.loss_mask).sum() / batch.loss_mask.sum()

    loss, grads = jax.jit(jax.value_and_grad(mean_nats))(params)
    state, (metrics,) = run_steps(plan, start(plan), [batch])
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(
        metrics["grad_norm"], np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads))), rtol=1e-4
    )
    assert_trees_close(first_moments(state), jax.tree.map(lambda grad: 0.1 * grad, grads), atol=1e-6)


@pytest.mark.parametrize("mesh", [{}, pytest.param({"data": 2}, marks=pytest.mark.slow), {"fsdp": 2}], ids=str)
def test_microbatches_of_unequal_token_counts_equal_one_big_batch(mesh, start):
    optim = replace(OPTIM, clip_norm=None)
    batch = counted(make_batch(rows=4, length=64), [7, 61, 0, 33])
    whole = make_plan(optim=optim, global_batch=4, sequence_length=64)
    parts = replace(whole, mesh=make_plan(mesh=mesh).mesh, train=replace(whole.train, microbatches=2))
    expected, (want,) = run_steps(whole, start(whole), [batch])
    got_state, (got,) = run_steps(parts, start(parts), [batch])
    assert got["tokens"] == want["tokens"] == 101
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-6)
    assert_trees_close(first_moments(got_state), first_moments(expected), atol=1e-6)


def test_all_masked_batch_moves_step_and_cursor_but_no_weight(start):
    plan = make_plan()
    first, _ = run_steps(plan, start(plan), [make_batch()])
    batch = counted(make_batch(seed=1), [0] * 8)
    state, (metrics,) = run_steps(plan, jax.device_put(first, state_shardings(plan, mesh_of(plan))), [batch])
    assert (metrics["loss"], metrics["tokens"], metrics["grad_norm"], metrics["finite"]) == (0, 0, 0, True)
    assert_trees_close((state.params, state.opt_state), (first.params, first.opt_state))
    assert state.step == first.step + 1
    np.testing.assert_array_equal(state.cursor, batch.cursor)


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2, "tensor": 2}], ids=str)
def test_non_finite_loss_leaves_the_whole_state_and_is_told(mesh, start):
    plan = make_plan(mesh=mesh)
    poisoned = start(plan)
    poisoned.params["final_norm"]["scale"] = poisoned.params["final_norm"]["scale"].at[0].set(jnp.inf)
    before = jax.device_get(poisoned)
    after, (metrics,) = run_steps(plan, poisoned, [make_batch()])
    assert not metrics["finite"]
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_learning_rate_of_a_resumed_run_is_that_of_the_unbroken_one(start):
    plan = make_plan(optim=replace(OPTIM, schedule="cosine", warmup_steps=5, decay_steps=15))
    batches = [make_batch(seed=i) for i in range(12)]
    unbroken, metrics = run_steps(plan, start(plan), batches)
    stopped, before = run_steps(plan, start(plan), batches[:8])
    resumed, after = run_steps(plan, jax.device_put(stopped, state_shardings(plan, mesh_of(plan))), batches[8:])
    assert [m["learning_rate"] for m in before + after] == [m["learning_rate"] for m in metrics]
    assert [m["loss"] for m in before + after] == [m["loss"] for m in metrics]
    assert len({float(m["learning_rate"]) for m in metrics}) == 11  # the peak stands twice, nothing else repeats
    jax.tree.map(np.testing.assert_array_equal, resumed, unbroken)


@pytest.mark.slow
def test_dropout_after_a_resume_and_on_a_mesh_draws_the_masks_of_the_unbroken_run(start):
    plan, split = make_plan(dropout=0.3), make_plan(dropout=0.3, mesh={"fsdp": 2, "tensor": 2}, microbatches=2)
    batches = [make_batch()] * 2
    unbroken, metrics = run_steps(plan, start(plan), batches)
    stopped, _ = run_steps(plan, start(plan), batches[:1])
    saved = jax.tree.map(np.array, stopped)  # through plain NumPy, as a checkpoint would
    resumed, _ = run_steps(plan, jax.device_put(saved, state_shardings(plan, mesh_of(plan))), batches[1:])
    jax.tree.map(np.testing.assert_array_equal, resumed, unbroken)
    _, on_mesh = run_steps(split, start(split), batches)
    np.testing.assert_allclose([m["loss"] for m in on_mesh], [m["loss"] for m in metrics], rtol=1e-4)
    _, without = run_steps(make_plan(), start(plan), batches[:1])
    assert abs(without[0]["loss"] - metrics[0]["loss"]) > 1e-4


def test_stop_votes_are_summed_over_the_rows(start):
    plan = make_plan(mesh={"fsdp": 2})
    _, (quiet,) = run_steps(plan, start(plan), [make_batch()])
    _, (asked,) = run_steps(plan, start(plan), [make_batch()], stop_vote=True)
    assert (quiet["stop_votes"], asked["stop_votes"]) == (0, 8)


def test_train_step_in_bfloat16_learns_and_keeps_f32_state(start):
    plan = make_plan(compute_dtype="bfloat16", mesh={"fsdp": 2}, remat="none")
    state, metrics = run_steps(plan, start(plan), [make_batch()] * 8)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype("float32")}


def test_train_step_gives_its_state_away(start):
    plan = make_plan()
    state, mesh = start(plan), mesh_of(plan)
    compiled_step(plan_dumps(plan))(state, make_global_batch(make_batch(), mesh, global_batch=8))
    assert state.params["head"].is_deleted()


@pytest.mark.parametrize(
    ("remat", "context_kept", "products_kept"),
    [("none", True, True), ("dots", True, True), ("attention", True, False), ("full", False, False)],
)
def test_remat_policy_keeps_what_it_names_and_never_the_gathered_weights(remat, context_kept, products_kept):
    model = replace(SPEC, hidden_size=64, mlp_size=2048, num_layers=8)
    plan = make_plan(model=model, mesh={"fsdp": 8}, remat=remat)
    mesh = mesh_of(plan)
    traced = make_train_step(plan, mesh).trace(abstract_state(plan, mesh), abstract_batch(plan, mesh))
    shapes = set(shapes_on_one_device(traced.jaxpr.jaxpr))
    assert (64, 2048) in shapes  # one layer's weight, gathered
    assert (8, 64, 2048) not in shapes  # all layers' weights, gathered
    assert ((8, 1, 32, 4, 8) in shapes) is context_kept
    assert bool({(8, 1, 32, 2048), (8, 32, 2048)} & shapes) is products_kept


def test_eval_step_sums_nats_tokens_and_bytes(start):
    plan = make_plan(mesh={"fsdp": 2, "tensor": 2}, dropout=0.5, microbatches=2)
    mesh, batch = mesh_of(plan), make_batch()
    state = start(plan)
    sums = make_eval_step(plan, mesh)(state.params, make_global_batch(batch, mesh, global_batch=8))
    _, (train,) = run_steps(make_plan(), start(make_plan()), [batch])
    assert (int(sums["tokens"]), int(sums["bytes"])) == (8 * 29, 8 * 29)
    np.testing.assert_allclose(sums["nats"] / sums["tokens"], train["loss"], rtol=2e-5)


def test_make_global_batch_of_another_number_of_rows_is_refused():
    mesh = mesh_of(make_plan())
    with pytest.raises(ValueError, match="this host feeds 8 rows of the global batch of 8, got 4"):
        make_global_batch(make_batch(rows=4), mesh, global_batch=8)


@pytest.mark.parametrize(
    ("mesh", "train", "said"),
    [
        ({"fsdp": 4}, {"microbatches": 4}, "batch of size 2 does not divide into 4 parts"),
        ({}, {"microbatches": 3}, "global batch 8 does not divide into 3 microbatches"),
        ({"tensor": 2}, {"sequence_length": 31}, "sequence length 31 does not divide over tensor 2"),
    ],
)
def test_make_train_step_that_does_not_divide_is_refused(mesh, train, said):
    plan = make_plan(mesh=mesh, **train)
    with pytest.raises(MeshError, match=said):
        make_train_step(plan, mesh_of(plan))
