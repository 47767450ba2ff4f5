"""Plans and tasks around the toy model: a whole attempt at a run, without data files or a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from tests.fakes.tiny_training import SPEC, make_plan
from tests.fakes.toy_training import SEQUENCE, VOCAB, WIDTH, Toy, ToyFeed, make_mesh, toy_program
from tpuctl.plan.schema import TrainingPlan
from tpuctl.plan.train_schema import CheckpointPlan
from tpuctl.runs.events import Event
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.program import Program
from tpuctl.train.provenance import provenance_of
from tpuctl.train.stopping import StopReason
from tpuctl.train.task import Task

MODEL = dataclasses.replace(SPEC, name="toy", vocab_size=VOCAB, hidden_size=WIDTH)


def toy_plan(directory: Path, **changes: Any) -> TrainingPlan:
    """A plan of 12 steps on one host with 4 devices; ``train__steps=20`` changes one field."""
    plan = make_plan(model=MODEL, mesh={"data": 4}, steps=12, sequence_length=SEQUENCE, dropout=0.1, remat="none")
    plan = dataclasses.replace(
        plan,
        run=dataclasses.replace(plan.run, directory=str(directory)),
        data=dataclasses.replace(plan.data, eval_uri="toy-held-out"),
        checkpoint=CheckpointPlan(every=4, keep=3, resume="auto"),
    )
    for path, value in changes.items():
        section, field = path.split("__")
        plan = dataclasses.replace(plan, **{section: dataclasses.replace(getattr(plan, section), **{field: value})})
    return plan


class Run:
    """One attempt at a run of the toy: its task, and the events it told."""

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        toy: Toy | None = None,
        program: Program | None = None,
        devices: list[Any] | None = None,
        length: list[int] | None = None,
        job: str = "job-1",
        checkpoint_timeout_seconds: float = 60.0,
    ) -> None:
        self.events: list[Event] = []
        self.asked_to_stop_at: int | None = None
        self.reason_to_stop = StopReason.REQUESTED
        mesh = make_mesh(devices or jax.devices()[:4])
        rows = host_rows(plan.train.global_batch)
        self.task = Task(
            plan=plan,
            program=program or toy_program(mesh, toy or Toy(rows=plan.train.global_batch)),
            feed=ToyFeed(rows, length=length),
            checkpoints=Checkpoints(
                f"{plan.run.directory}/checkpoints",
                provenance=provenance_of(plan, job=job),
                keep=plan.checkpoint.keep,
                timeout_seconds=checkpoint_timeout_seconds,
            ),
            emit=self.events.append,
            stop=self._stop,
            simulated=True,
        )

    def told(self, name: str, field: str = "step") -> list[Any]:
        """One field of all events of a name."""
        return [item[field] for item in self.events if item["event"] == name]

    def losses(self) -> dict[int, float]:
        """The loss of each step that was told."""
        return dict(zip(self.told("step"), self.told("step", "loss"), strict=True))

    def _stop(self) -> StopReason | None:
        done = max(self.told("step"), default=0)
        is_due = self.asked_to_stop_at is not None and done >= self.asked_to_stop_at
        return self.reason_to_stop if is_due else None


def host_rows(global_batch: int) -> range:
    """This process's rows of the global batch, where all processes have equally many devices."""
    share = global_batch // jax.process_count()
    return range(jax.process_index() * share, (jax.process_index() + 1) * share)
