"""The events of a run. The first host tells of the run, every host of itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from tpuctl.runs.events import event
from tpuctl.train.checkpoint import Saved
from tpuctl.train.evaluation import Evaluation
from tpuctl.train.meter import Speed
from tpuctl.train.task import Result, Task


@dataclass(frozen=True, slots=True)
class Teller:
    """Makes and emits the events of one attempt."""

    task: Task

    def joined(self) -> None:
        """This host is there."""
        self.task.emit(
            event(
                "host",
                host=jax.process_index(),
                hosts=jax.process_count(),
                pid=os.getpid(),
                ip=platform.node(),
                devices=jax.local_device_count(),
                platform=jax.default_backend(),
                simulated=self.task.simulated,
            )
        )

    def failed(self, reason: str, *, step: int) -> None:
        """This host gives up."""
        self.task.emit(event("failed", reason=reason, step=step, host=jax.process_index()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of the start, told with its length when it is over."""
        began = self.task.clock()
        yield
        self._tell("phase", phase=name, seconds=self.task.clock() - began)

    def training(self) -> None:
        """The first step is about to begin."""
        self._tell("phase", phase="training")

    def resumed(self, step: int) -> None:
        """Training goes on from a checkpoint."""
        self._tell("resume", step=step, path=self.task.checkpoints.path(step))

    def notes(self, texts: list[str]) -> None:
        """Things worth a line each."""
        for text in texts:
            self._tell("note", text=text)

    def step(self, step: int, values: Any, *, epoch: int, speed: Speed) -> None:
        """A step's metrics, and the speed since the last told step."""
        steps = self.task.plan.train.steps
        self._tell(
            "step",
            step=step,
            steps=steps,
            epoch=epoch,
            loss=float(values["loss"]),
            tokens=int(values["tokens"]),
            tokens_per_second=speed.tokens_per_second,
            step_seconds=speed.step_seconds,
            data_stall=speed.data_stall,
            learning_rate=float(values["learning_rate"]),
            grad_norm=float(values["grad_norm"]),
            eta_seconds=(steps - step) * speed.step_seconds,
        )

    def evaluated(self, found: Evaluation) -> None:
        """A held-out loss."""
        self._tell(
            "eval",
            step=found.step,
            loss=found.loss,
            bits_per_byte=found.bits_per_byte,
            tokens=found.tokens,
            bytes=found.bytes,
        )

    def saved(self, saves: list[Saved]) -> None:
        """Checkpoints that are complete now."""
        for save in saves:
            self._tell(
                "checkpoint", step=save.step, path=save.path, blocked_seconds=save.blocked_seconds, kind=save.kind
            )

    def stopped(self, result: Result) -> None:
        """The run was stopped early, and can go on from its checkpoint."""
        path = self.task.checkpoints.path(result.step)
        self._tell("stopped", step=result.step, path=path, reason=str(result.stopped))

    def done(self, result: Result) -> None:
        """The run is over."""
        found = result.evaluation
        self._tell(
            "done",
            step=result.step,
            loss=result.loss,
            eval_loss=None if found is None else found.loss,
            bits_per_byte=None if found is None else found.bits_per_byte,
            checkpoints=list(result.checkpoints),
            seconds=result.seconds,
        )

    def _tell(self, name: str, **fields: Any) -> None:
        if jax.process_index() == 0:
            self.task.emit(event(name, **fields))
