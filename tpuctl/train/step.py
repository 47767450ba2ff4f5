"""The training step and the evaluation step: pure functions of state and batch, jitted once per plan.

The gradient half is manual (``gradient``); the optimizer half below is left to automatic partitioning, since every
array in it lies like the parameters and nothing but scalars is summed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from tpuctl.mesh import batch_sharding, host_rows, replicated
from tpuctl.nn.params import ParamTree, param_shardings
from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.batch import HostBatch
from tpuctl.train.gradient import GlobalBatch, LossProgram, gradients, loss_program, losses
from tpuctl.train.optim import adamw, clip_factor, learning_rate_schedule
from tpuctl.train.state import CURSOR_WORDS, TrainState, state_shardings

type Metrics = dict[str, Array]
"""Scalars, the same on every host. Of a training step:

``loss`` mean nats per counted token, 0 where none counted · ``tokens`` counted · ``grad_norm`` before clipping ·
``learning_rate`` · ``finite`` loss and gradients were finite (if not, the state was left as it was) ·
``stop_votes`` sum of the batch's votes.

Of an evaluation step, sums over the counted tokens: ``nats`` · ``tokens`` · ``bytes`` of text they stand for.
"""


def make_train_step(plan: TrainingPlan, mesh: Mesh, *, real_vocab: int | None = None) -> jax.stages.Wrapped:
    """``(state, batch) -> (state, metrics)``, jitted. The state is donated: use only the returned one.

    A batch that makes a non-finite loss or gradient leaves the whole state as it was. A batch in which no token
    counts moves ``step`` and ``cursor`` on, but neither weights nor moments.

    Raises:
        MeshError: batch, sequence or model do not divide over the mesh.
    """
    program = loss_program(plan, mesh, real_vocab=real_vocab)
    shardings = state_shardings(plan, mesh)
    return jax.jit(
        lambda state, batch: _train_step(program, state, batch),
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def make_eval_step(plan: TrainingPlan, mesh: Mesh, *, real_vocab: int | None = None) -> jax.stages.Wrapped:
    """``(params, batch) -> sums``, jitted; no dropout, and ``train.microbatches`` does not apply."""
    program = loss_program(plan, mesh, real_vocab=real_vocab)
    return jax.jit(
        lambda params, batch: _eval_step(program, params, batch),
        in_shardings=(param_shardings(plan.model, mesh, lora=plan.lora), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )


def make_global_batch(host_batch: HostBatch, mesh: Mesh, *, global_batch: int, stop_vote: bool = False) -> GlobalBatch:
    """The global batch of which ``host_batch`` holds the rows ``mesh.host_rows`` names, in that order.

    Raises:
        ValueError: the number of rows is not this host's.
    """
    rows = host_batch.tokens.shape[0]
    place_of = {row: place for place, row in enumerate(host_rows(mesh, global_batch=global_batch))}
    if rows != len(place_of):
        raise ValueError(f"this host feeds {len(place_of)} rows of the global batch of {global_batch}, got {rows}")
    fields = {field.name: getattr(host_batch, field.name) for field in dataclasses.fields(host_batch)}
    fields["stop_vote"] = np.full(rows, int(stop_vote), np.int32)
    sharding = batch_sharding(mesh)

    def assemble(values: np.ndarray) -> Array:
        def shard(index: Any) -> np.ndarray:
            return values[[place_of[row] for row in range(global_batch)[index[0]]]]

        return jax.make_array_from_callback((global_batch, *values.shape[1:]), sharding, shard)

    return GlobalBatch(**{name: assemble(np.asarray(values, np.int32)) for name, values in fields.items()})


def abstract_batch(plan: TrainingPlan, mesh: Mesh) -> GlobalBatch:
    """Shapes and shardings of a batch, without any array."""
    rows, length = plan.train.global_batch, plan.train.sequence_length
    inner: dict[str, tuple[int, ...]] = {"num_bytes": (), "stop_vote": (), "cursor": (CURSOR_WORDS,)}
    sharding = batch_sharding(mesh)
    arrays: dict[str, Any] = {}
    for field in dataclasses.fields(GlobalBatch):
        shape = (rows, *inner.get(field.name, (length,)))
        arrays[field.name] = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
    return GlobalBatch(**arrays)


def _train_step(program: LossProgram, state: TrainState, batch: GlobalBatch) -> tuple[TrainState, Metrics]:
    plan = program.plan
    grads, sums = gradients(program, state.params, batch, key=state.step_key())
    per_token = 1.0 / jnp.maximum(sums.tokens, 1)
    norm = optax.tree.norm(grads) * per_token
    loss = sums.nats * per_token
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    rate = learning_rate_schedule(plan.optim, steps=plan.train.steps)(state.step)
    scale = per_token * clip_factor(norm, plan.optim.clip_norm)
    trained, frozen = program.trainable.split(state.params)
    params, opt_state = _updated(program, replace(state, params=trained), grads, scale=scale, rate=rate)
    learned = finite & (sums.tokens > 0)
    new_state = TrainState(
        step=state.step + finite,
        params=program.trainable.join(_choose(learned, params, trained), frozen),
        opt_state=_choose(learned, opt_state, state.opt_state),
        key=state.key,
        cursor=_choose(finite, batch.cursor, state.cursor),
    )
    metrics = {
        "loss": loss,
        "tokens": sums.tokens,
        "grad_norm": norm,
        "learning_rate": jnp.asarray(rate, jnp.float32),
        "finite": finite,
        "stop_votes": batch.stop_vote.sum(),
    }
    return new_state, metrics


def _eval_step(program: LossProgram, params: ParamTree, batch: GlobalBatch) -> Metrics:
    sums = losses(program, params, batch)
    return {"nats": sums.nats, "tokens": sums.tokens, "bytes": sums.num_bytes}


def _updated(
    program: LossProgram, state: TrainState, grads: ParamTree, *, scale: Array, rate: Any
) -> tuple[ParamTree, Any]:
    """The trained parameters and their moments; ``state`` holds no others."""
    grads = jax.tree.map(lambda grad: grad * scale, grads)
    optimizer = adamw(program.plan.optim, program.trainable.trained(program.axes))
    direction, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return jax.tree.map(lambda param, step: param - rate * step, state.params, direction), opt_state


def _choose(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
