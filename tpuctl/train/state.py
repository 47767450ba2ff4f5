"""The training state: everything a resumed run needs, as plain arrays with a place on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Int32, Key, UInt32

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.mesh import batch_sharding, named_sharding, replicated
from tpuctl.nn.params import ParamTree, init_params, joined, param_shardings, split_adapters
from tpuctl.nn.peft import Adapted, read_adapter
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.optim import adamw
from tpuctl.train.trainable import Trainable

CURSOR_WORDS = 4

_KEY_IMPLEMENTATION = "threefry2x32"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """State after ``step`` optimizer steps.

    ``params`` and the moments in ``opt_state`` are f32; frozen weights have no moments and are held in the dtype
    they are used in (``Trainable``). ``key`` is the run's random key as raw words: arrays of the
    typed key's dtype can't be written to a checkpoint, words can. ``cursor`` is where each row's data lane stands.
    """

    step: Int32[Array, ""]
    params: ParamTree
    opt_state: optax.OptState
    key: UInt32[Array, " words"]
    cursor: Int32[Array, "global_batch 4"]

    def step_key(self) -> Key[Array, ""]:
        """The typed key of this step: the same after a resume as in the unbroken run."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key, impl=_KEY_IMPLEMENTATION), self.step)


jax.tree_util.register_dataclass(TrainState)


def init_state(plan: TrainingPlan, mesh: Mesh) -> TrainState:
    """A new state, made in place: each device has its own shards and no host ever holds a whole copy.

    The weights are those of the plan's model folder where it names one, else drawn from the plan's seed.

    Raises:
        WeightsError: the folder does not hold the plan's model.
    """
    shardings = state_shardings(plan, mesh)
    if plan.weights is None:
        return _compiled(lambda: _initial(plan), mesh, shardings)

    def without_weights(state: Any) -> Any:
        return replace(state, params=split_adapters(state.params)[0])

    # Without them no weight is drawn: the compiler leaves out what nobody asks for.
    drawn = _compiled(lambda: without_weights(_initial(plan)), mesh, without_weights(shardings))
    if plan.lora is not None and plan.lora.adapter is not None:
        adapted = Adapted(spec=plan.model, family=plan.weights.family, lora=plan.lora)
        drawn = replace(drawn, params=_laid_out(read_adapter(adapted, plan.lora.adapter), like=drawn.params))
    return with_weights(plan, drawn, mesh)


def with_weights(plan: TrainingPlan, state: TrainState, mesh: Mesh) -> TrainState:
    """``state``, which has no weights or adapters alone, with those of the plan's model folder.

    Raises:
        WeightsError: the folder does not hold the plan's model.
    """
    assert plan.weights is not None, "the plan names a folder"
    loaded = load_params(
        plan.model,
        model_folder(plan.weights.uri),
        family=plan.weights.family,
        shardings=split_adapters(param_shardings(plan.model, mesh, lora=plan.lora))[1],
        dtype=Trainable.of(plan).stored_dtypes(),
    )
    return replace(state, params=joined(state.params, loaded.params))


def state_shardings(plan: TrainingPlan, mesh: Mesh) -> Any:
    """The ``TrainState`` of shardings.

    Raises:
        MeshError: a dimension of the model or the batch does not divide over the mesh.
    """
    shapes = jax.eval_shape(lambda: _initial(plan))
    params, trainable = param_shardings(plan.model, mesh, lora=plan.lora), Trainable.of(plan)
    opt_state = optax.tree_utils.tree_map_params(
        adamw(plan.optim, trainable.trained(trainable.axes())),
        lambda _, sharding: sharding,
        shapes.opt_state,
        trainable.trained(params),
        transform_non_params=lambda _: replicated(mesh),
    )
    named_sharding(mesh, ("batch",), shape=(plan.train.global_batch,))
    places: dict[str, Any] = {"step": replicated(mesh), "key": replicated(mesh), "cursor": batch_sharding(mesh)}
    return TrainState(**places, params=params, opt_state=opt_state)


def abstract_state(plan: TrainingPlan, mesh: Mesh) -> TrainState:
    """Shapes, dtypes and shardings of the state, without any array: what a restore or a compile needs."""

    def describe(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state: TrainState = jax.tree.map(describe, jax.eval_shape(lambda: _initial(plan)), state_shardings(plan, mesh))
    return state


def _laid_out(arrays: dict[str, np.ndarray], *, like: ParamTree) -> ParamTree:
    """Arrays by path, each where its namesake in ``like`` lies."""

    def place(path: Any, leaf: Array) -> Array:
        values = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

    tree: ParamTree = jax.tree_util.tree_map_with_path(place, like)
    return tree


def _compiled(make: Callable[[], TrainState], mesh: Mesh, shardings: Any) -> TrainState:
    # Runs once, so on CPU optimizing it, which takes seconds, pays never.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    options = {"xla_backend_optimization_level": 1} if on_cpu else None
    state: TrainState = jax.jit(make, out_shardings=shardings, compiler_options=options)()
    return state


def _initial(plan: TrainingPlan) -> TrainState:
    init_key, run_key = jax.random.split(jax.random.key(plan.train.seed, impl=_KEY_IMPLEMENTATION))
    trainable = Trainable.of(plan)
    trained, frozen = trainable.split(init_params(plan.model, init_key, lora=plan.lora))
    if frozen:
        frozen = jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), frozen, trainable.stored_dtypes())
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=trainable.join(trained, frozen),
        opt_state=adamw(plan.optim, trainable.trained(trainable.axes())).init(trained),
        key=jax.random.key_data(run_key),
        cursor=jnp.zeros((plan.train.global_batch, CURSOR_WORDS), jnp.int32),
    )
