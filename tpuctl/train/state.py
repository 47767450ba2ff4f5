"""The training state: everything a resumed run needs, as plain arrays with a place on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Int32, Key, UInt32

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.mesh import batch_sharding, named_sharding, replicated
from tpuctl.nn.params import ParamTree, init_params, logical_axes
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.optim import adamw

CURSOR_WORDS = 4

_KEY_IMPLEMENTATION = "threefry2x32"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """State after ``step`` optimizer steps.

    ``params`` and the moments in ``opt_state`` are f32. ``key`` is the run's random key as raw words: arrays of the
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
    folder = model_folder(plan.weights.uri)
    loaded = load_params(plan.model, folder, family=plan.weights.family, shardings=shardings.params, dtype=jnp.float32)
    # Without them no weight is drawn: the compiler leaves out what nobody asks for.
    rest = _compiled(lambda: replace(_initial(plan), params={}), mesh, replace(shardings, params={}))
    return replace(rest, params=loaded.params)


def state_shardings(plan: TrainingPlan, mesh: Mesh) -> Any:
    """The ``TrainState`` of shardings.

    Raises:
        MeshError: a dimension of the model or the batch does not divide over the mesh.
    """
    shapes = jax.eval_shape(lambda: _initial(plan))
    params = param_shardings(plan, mesh)
    opt_state = optax.tree_utils.tree_map_params(
        adamw(plan.optim, logical_axes(plan.model)),
        lambda _, sharding: sharding,
        shapes.opt_state,
        params,
        transform_non_params=lambda _: replicated(mesh),
    )
    named_sharding(mesh, ("batch",), shape=(plan.train.global_batch,))
    places: dict[str, Any] = {"step": replicated(mesh), "key": replicated(mesh), "cursor": batch_sharding(mesh)}
    return TrainState(**places, params=params, opt_state=opt_state)


def param_shardings(plan: TrainingPlan, mesh: Mesh) -> ParamTree:
    """The tree of the parameters' shardings; raises ``MeshError`` as ``state_shardings`` does."""
    shapes = jax.eval_shape(lambda: init_params(plan.model, jax.random.key(0)))

    def place(axes: tuple[str, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return named_sharding(mesh, axes, shape=leaf.shape)

    axes = logical_axes(plan.model, tensor=mesh.shape["tensor"])
    tree: ParamTree = jax.tree.map(place, axes, shapes, is_leaf=lambda n: isinstance(n, tuple))
    return tree


def abstract_state(plan: TrainingPlan, mesh: Mesh) -> TrainState:
    """Shapes, dtypes and shardings of the state, without any array: what a restore or a compile needs."""

    def describe(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state: TrainState = jax.tree.map(describe, jax.eval_shape(lambda: _initial(plan)), state_shardings(plan, mesh))
    return state


def _compiled(make: Callable[[], TrainState], mesh: Mesh, shardings: Any) -> TrainState:
    # Runs once, so on CPU optimizing it, which takes seconds, pays never.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    options = {"xla_backend_optimization_level": 1} if on_cpu else None
    state: TrainState = jax.jit(make, out_shardings=shardings, compiler_options=options)()
    return state


def _initial(plan: TrainingPlan) -> TrainState:
    init_key, run_key = jax.random.split(jax.random.key(plan.train.seed, impl=_KEY_IMPLEMENTATION))
    params = init_params(plan.model, init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=adamw(plan.optim, logical_axes(plan.model)).init(params),
        key=jax.random.key_data(run_key),
        cursor=jnp.zeros((plan.train.global_batch, CURSOR_WORDS), jnp.int32),
    )
