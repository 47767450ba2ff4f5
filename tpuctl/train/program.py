"""The seam between the loop and what it drives: jitted functions, and the shapes they take.

The loop knows of a state only that it has ``params``, ``step`` and ``cursor``; a test drives it with a toy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jaxtyping import Array, Float32, Int32

from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.batch import HostBatch
from tpuctl.train.state import abstract_state, init_state, with_weights
from tpuctl.train.step import abstract_batch, make_eval_step, make_global_batch, make_train_step
from tpuctl.train.trainable import Trainable


class State(Protocol):
    """A training state, as far as the loop looks into it."""

    @property
    def params(self) -> Any:
        """What ``eval_step`` takes."""
        ...

    @property
    def step(self) -> Int32[Array, ""]:
        """Optimizer steps done."""
        ...

    @property
    def cursor(self) -> Int32[Array, "batch 4"]:
        """Where each lane of the data stands after that step."""
        ...


Metrics = Mapping[str, Float32[Array, ""] | Int32[Array, ""]]


def _whole(state: Any) -> Any:
    return state


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One model and optimizer on one mesh.

    Attributes:
        mesh: All devices of the job.
        abstract_state: Shape, dtype and sharding of each array of the state.
        abstract_batch: The same of a global batch.
        init: A fresh state.
        kept: The part of a state that its checkpoint holds.
        completed: A state, of the part that was kept.
        train_step: Jitted ``(state, batch) -> (state, metrics)``; donates the state. Metrics are the same on all
            hosts: loss, tokens, grad_norm, learning_rate, finite, stop_votes.
        eval_step: Jitted ``(params, batch) -> sums``: nats, tokens and bytes over the global batch.
        assemble: ``(host batch, stop vote) -> global batch`` on the devices.
    """

    mesh: jax.sharding.Mesh
    abstract_state: Any
    abstract_batch: Any
    init: Callable[[], Any]
    train_step: Any
    eval_step: Any
    assemble: Callable[[HostBatch, bool], Any]
    kept: Callable[[Any], Any] = _whole
    completed: Callable[[Any], Any] = _whole


def program_for(plan: TrainingPlan, mesh: jax.sharding.Mesh, *, real_vocab: int | None = None) -> Program:
    """The program of a plan. ``real_vocab``: token ids that exist, if fewer than the model's rows.

    Raises:
        MeshError: batch, sequence or model do not divide over the mesh.
    """

    def assemble(batch: HostBatch, stop_vote: bool) -> Any:
        return make_global_batch(batch, mesh, global_batch=plan.train.global_batch, stop_vote=stop_vote)

    return Program(
        mesh=mesh,
        abstract_state=abstract_state(plan, mesh),
        abstract_batch=abstract_batch(plan, mesh),
        init=lambda: init_state(plan, mesh),
        train_step=make_train_step(plan, mesh, real_vocab=real_vocab),
        eval_step=make_eval_step(plan, mesh, real_vocab=real_vocab),
        assemble=assemble,
        kept=Trainable.of(plan).kept,
        completed=lambda kept: kept if plan.lora is None else with_weights(plan, kept, mesh),
    )
