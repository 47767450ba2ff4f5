"""The seam between the loop and what it drives: jitted functions, and the shapes they take.

The loop knows of a state only that it has ``params``, ``step`` and ``cursor``; a test drives it with a toy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jaxtyping import Array, Float32, Int32

from tpuctl.train.batch import HostBatch


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One model and optimizer on one mesh.

    Attributes:
        mesh: All devices of the job.
        abstract_state: Shape, dtype and sharding of each array of the state.
        abstract_batch: The same of a global batch.
        init: A fresh state.
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
