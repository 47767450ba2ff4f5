"""What the loop is given and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tpuctl.plan.schema import TrainingPlan
from tpuctl.runs.events import Event
from tpuctl.train.batch import BatchFeed
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.evaluation import Evaluation
from tpuctl.train.meter import Clock
from tpuctl.train.program import Program
from tpuctl.train.stopping import StopPoll, StopReason
from tpuctl.train.watchdog import DEFAULT_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One attempt at a run, on one host.

    Attributes:
        plan: What was decided.
        program: The model on its mesh.
        feed: Where this host's batches come from.
        checkpoints: Those of the run directory. The loop closes them.
        emit: Takes events; the first host tells of progress, every host of itself.
        stop: Asked once a step, must not block: is there a reason to save and end?
        simulated: Whether CPU devices stand for the slice.
        clock: Seconds, from anywhere.
        watchdog_seconds: After so long without a finished step the process ends.
    """

    plan: TrainingPlan
    program: Program
    feed: BatchFeed
    checkpoints: Checkpoints
    emit: Callable[[Event], None]
    stop: StopPoll
    simulated: bool
    clock: Clock = time.monotonic
    watchdog_seconds: float = DEFAULT_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How an attempt ended. ``loss`` is that of the last step, None where there was no step to do."""

    step: int
    loss: float | None
    evaluation: Evaluation | None
    stopped: StopReason | None
    checkpoints: tuple[str, ...]
    seconds: float
