"""Adapters: their gradients, on any mesh; frozen weights that stay what they are; a resume that goes on the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.model_folders import SPEC, write_model
from tests.fakes.tiny_training import OPTIM, make_batch, make_plan
from tpuctl.errors import CheckpointError
from tpuctl.mesh import create_mesh
from tpuctl.modelspec.adapters import BACK, TARGETS, adapter_parameters, adapter_path, targets_of
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import bind, split_adapters
from tpuctl.plan.schema import TrainingPlan
from tpuctl.plan.weights_schema import LoraPlan, WeightsPlan
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.leaves import named_leaves
from tpuctl.train.program import Program, program_for
from tpuctl.train.provenance import provenance_of
from tpuctl.train.state import TrainState, state_shardings
from tpuctl.train.step import abstract_batch, make_train_step

LORA = LoraPlan(rank=4, alpha=6.0, targets=tuple(TARGETS), dropout=0.0, adapter=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


def lora_plan(
    folder: Path, *, mesh: dict[str, int] | None = None, lora: LoraPlan | None = LORA, **train: Any
) -> TrainingPlan:
    plan = make_plan(model=SPEC, optim=replace(OPTIM, clip_norm=None), mesh=mesh, **train)
    return replace(plan, weights=WeightsPlan(uri=str(folder), family="llama"), lora=lora)


def program_of(plan: TrainingPlan) -> Program:
    count = plan.mesh.slice * plan.mesh.data * plan.mesh.fsdp * plan.mesh.tensor
    return program_for(plan, create_mesh(plan.mesh, devices=jax.devices()[:count]))


def begun(program: Program, plan: TrainingPlan) -> TrainState:
    """A new state in which B is not 0, as it is after some steps; else A would have no gradient."""
    state = program.init()
    random = np.random.default_rng(1)

    def moved(path: Any, leaf: jax.Array) -> np.ndarray:
        values = np.asarray(leaf)
        return random.normal(size=leaf.shape).astype(np.float32) * 0.1 if path[-1].key == "b" else values

    adapters, weights = split_adapters(state.params)
    adapters = jax.tree_util.tree_map_with_path(moved, adapters)
    state = replace(state, params=_merged(adapters, weights))
    return jax.device_put(state, state_shardings(plan, program.mesh))


def _merged(left: Any, right: Any) -> Any:
    return {
        name: _merged(left.get(name, {}), right.get(name, {})) if isinstance(child, dict) else child
        for name, child in {**right, **left}.items()
    }


def stepped(plan: TrainingPlan, *, steps: int = 1) -> tuple[TrainState, Any]:
    program = program_of(plan)
    state = begun(program, plan)
    for seed in range(steps):
        state, metrics = program.train_step(state, program.assemble(make_batch(vocab=320, seed=seed), False))
    return jax.device_get(state), jax.device_get(metrics)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(left), jax.device_get(right))


def assert_close(left: Any, right: Any) -> None:
    """Within 1e-3 of each array's own size: gradients through attention are a thousandth of the others here."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-3 * np.abs(b).max()), left, right)


def effective(params: Any) -> Any:
    """The model's weights with each adapter's ``scale · B A`` added, by the definition."""
    adapters, weights = split_adapters(params)
    weights = jax.tree.map(lambda leaf: leaf, weights)
    for target, path in TARGETS.items():
        group, name = path.split("/")
        factors = adapters["layers"][group]["adapters"][name]
        order = "lrd,lr...->ld..."
        pair = (factors["b"], factors["a"]) if target in BACK else (factors["a"], factors["b"])
        weights["layers"][group][name] += LORA.scale * jnp.einsum(order, *pair)
    return weights


@pytest.fixture(scope="module")
def one_device(folder: Path) -> tuple[TrainState, Any]:
    return stepped(lora_plan(folder))


def test_gradients_of_adapters_are_those_of_the_changed_weights(folder: Path, one_device: Any) -> None:
    plan, batch = lora_plan(folder), make_batch(vocab=320)
    params = begun(program_of(plan), plan).params
    adapters, weights = split_adapters(params)

    def mean_nats(adapters: Any) -> jax.Array:
        rows = TokenRows(tokens=batch.tokens, positions=batch.positions, segment_ids=batch.segment_ids)
        log_probs = jax.nn.log_softmax(bind(SPEC, effective(_merged(adapters, weights))).logits(rows))
        nats = -jnp.take_along_axis(log_probs, batch.targets[..., None], -1)[..., 0]
        return (nats * batch.loss_mask).sum() / batch.loss_mask.sum()

    loss, grads = jax.jit(jax.value_and_grad(mean_nats))(adapters)
    state, metrics = one_device
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert jax.tree.structure(state.opt_state[0].mu) == jax.tree.structure(grads)
    assert_close(state.opt_state[0].mu, jax.tree.map(lambda grad: 0.1 * grad, grads))


@pytest.mark.parametrize(
    ("mesh", "train"),
    [
        pytest.param({"fsdp": 2, "tensor": 2}, {}, marks=pytest.mark.slow),
        pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, {"remat": "dots"}, marks=pytest.mark.slow),
        # two key heads for four devices
        pytest.param({"slice": 2, "tensor": 4}, {"remat": "none"}, marks=pytest.mark.slow),
        ({"fsdp": 2}, {"microbatches": 2, "remat": "attention"}),
    ],
    ids=str,
)
def test_step_on_a_mesh_equals_one_device(mesh: Any, train: Any, folder: Path, one_device: Any) -> None:
    expected, want = one_device
    state, metrics = stepped(lora_plan(folder, mesh=mesh, **train))
    np.testing.assert_allclose(metrics["loss"], want["loss"], rtol=2e-5)
    np.testing.assert_allclose(metrics["grad_norm"], want["grad_norm"], rtol=2e-4)
    assert_close(state.opt_state[0].mu, expected.opt_state[0].mu)


@pytest.mark.slow
def test_dropout_of_adapters_is_the_same_on_a_mesh_and_is_there(folder: Path, one_device: Any) -> None:
    dropping = replace(LORA, dropout=0.3)
    expected, want = stepped(lora_plan(folder, lora=dropping))
    state, got = stepped(lora_plan(folder, lora=dropping, mesh={"fsdp": 2, "tensor": 2}))
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-5)
    assert_close(state.opt_state[0].mu, expected.opt_state[0].mu)
    assert abs(want["loss"] - one_device[1]["loss"]) > 1e-4


def test_frozen_weights_are_bit_for_bit_the_same_after_steps_and_held_in_the_compute_dtype(folder: Path) -> None:
    plan = lora_plan(folder, mesh={"data": 2, "fsdp": 2, "tensor": 2}, compute_dtype="bfloat16", microbatches=2)
    program = program_of(plan)
    state = program.init()
    before = jax.device_get(split_adapters(state.params)[1])
    held = {name: str(leaf.dtype) for name, leaf in named_leaves(before).items()}
    assert {held[name] for name in held if "norm" in name} == {"float32"}
    assert {held[name] for name in held if "norm" not in name} == {"bfloat16"}
    for seed in range(2):
        state, metrics = program.train_step(state, program.assemble(make_batch(vocab=320, seed=seed), False))
    adapters, after = split_adapters(state.params)
    assert_equal(after, before)
    assert metrics["grad_norm"] > 0
    assert {str(leaf.dtype) for leaf in jax.tree.leaves((adapters, state.opt_state)) if leaf.ndim} == {"float32"}
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(jax.device_get(adapters)))


def test_new_adapters_change_nothing_and_are_drawn_as_peft_draws_them(folder: Path) -> None:
    plan = lora_plan(folder)
    adapters, weights = split_adapters(jax.device_get(program_of(plan).init().params))
    rows = make_batch(vocab=320)
    rows = TokenRows(tokens=rows.tokens, positions=rows.positions, segment_ids=rows.segment_ids)
    with_them = bind(SPEC, _merged(adapters, weights), lora=LORA).logits(rows)
    np.testing.assert_array_equal(with_them, bind(SPEC, weights).logits(rows))
    for target, path in TARGETS.items():
        group, name = path.split("/")
        factors = adapters["layers"][group]["adapters"][name]
        assert not factors["b"].any()
        bound = np.prod(factors["a"].shape[2:]) ** -0.5
        assert 0.9 * bound < np.abs(factors["a"]).max() <= bound, target
        assert abs(factors["a"].std() - bound / 3**0.5) < 0.1 * bound, target


def test_no_gradient_of_a_frozen_weight_is_sent(folder: Path) -> None:
    def scatters(plan: TrainingPlan) -> int:
        program = program_of(plan)
        step = make_train_step(plan, program.mesh)
        text = step.lower(program.abstract_state, abstract_batch(plan, program.mesh)).as_text()
        assert "all_gather" in text
        return text.count("stablehlo.reduce_scatter")

    split = {"data": 2, "fsdp": 2}
    assert scatters(lora_plan(folder, mesh=split)) == 0
    assert scatters(lora_plan(folder, mesh=split, lora=None)) > 0


def checkpoints_of(plan: TrainingPlan, directory: Path, *, weights: str = "fingerprint") -> Checkpoints:
    return Checkpoints(str(directory), provenance=provenance_of(plan, weights=weights), keep=2)


@pytest.mark.slow
def test_resumed_run_is_bit_for_bit_the_unbroken_one_and_its_checkpoint_has_no_frozen_weight(
    folder: Path, tmp_path: Path
) -> None:
    plan = lora_plan(folder, mesh={"fsdp": 2, "tensor": 2}, lora=replace(LORA, dropout=0.1))
    program, saving = program_of(plan), checkpoints_of(plan, tmp_path)
    batches = [program.assemble(make_batch(vocab=320, seed=seed), False) for seed in range(3)]
    state, _ = program.train_step(program.init(), batches[0])
    saving.save(1, program.kept(state))
    saving.close()
    names = named_leaves(program.kept(state))
    assert {name for name in names if name.startswith("params/") and "adapters" not in name} == set()
    assert sum(name.startswith("params/") for name in names) == 2 * len(TARGETS)
    restoring = checkpoints_of(plan, tmp_path)
    resumed = program.completed(restoring.restore(1, program.kept(program.abstract_state)))
    restoring.close()
    assert_equal(resumed, state)
    for batch in batches[1:]:
        state, _ = program.train_step(state, batch)
        resumed, _ = program.train_step(resumed, batch)
    assert_equal(resumed, state)


def test_checkpoint_of_other_adapters_or_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    plan = lora_plan(folder)
    program, saving = program_of(plan), checkpoints_of(plan, tmp_path)
    saving.save(1, program.kept(program.init()))
    saving.close()

    def restore(plan: TrainingPlan, *, weights: str = "fingerprint") -> None:
        program = program_of(plan)
        checkpoints_of(plan, tmp_path, weights=weights).restore(1, program.kept(program.abstract_state))

    with pytest.raises(CheckpointError, match=r"holds adapters of .*'alpha': 6.0.*'alpha': 12.0"):
        restore(lora_plan(folder, lora=replace(LORA, alpha=12.0)))
    with pytest.raises(CheckpointError, match="the plan trains all weights"):
        restore(lora_plan(folder, lora=None))
    with pytest.raises(CheckpointError, match="trained beside the weights fingerprint"):
        restore(plan, weights="another")


def test_adapter_parameters_are_those_that_the_decoder_makes(folder: Path) -> None:
    lora = replace(LORA, targets=("q_proj", "v_proj", "down_proj"))
    adapters = split_adapters(program_of(lora_plan(folder, lora=lora)).abstract_state.params)[0]
    made = {name: leaf.shape for name, leaf in named_leaves(adapters).items()}
    told = adapter_parameters(SPEC, rank=lora.rank, targets=lora.targets)
    assert made == {path: parameter.stacked_shape for path, parameter in told.items()}
    assert set(made) == {f"{adapter_path(target)}/{factor}" for target in lora.targets for factor in "ab"}
    assert targets_of(SPEC) == tuple(TARGETS)
    assert targets_of(replace(SPEC, mlp_gated=False)) == tuple(name for name in TARGETS if name != "gate_proj")
