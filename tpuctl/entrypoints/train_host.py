"""What each host of the slice does in a training run: the process in which JAX lives."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tpuctl.entrypoints.emit import emit_event, tell_note
from tpuctl.entrypoints.preemption import noticed
from tpuctl.entrypoints.prepare import Text
from tpuctl.entrypoints.seats import is_simulated
from tpuctl.entrypoints.stopping import StopWatch
from tpuctl.errors import StorageError
from tpuctl.plan.schema import TrainingPlan, plan_from_json, plan_to_json
from tpuctl.runs.events import Event, event
from tpuctl.runs.record import MetricsWriter
from tpuctl.storage import join

if TYPE_CHECKING:
    from tpuctl.train.stopping import StopPoll, StopReason
    from tpuctl.train.task import Result, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """What the driver gives every host. ``weights`` is the fingerprint of those a new run starts from."""

    plan: TrainingPlan
    text: Text
    weights: str
    job: str

    def to_ray(self) -> dict[str, Any]:
        """The dictionary that Ray Train hands to the work."""
        return {"plan": plan_to_json(self.plan), "text": self.text, "weights": self.weights, "job": self.job}

    @classmethod
    def from_ray(cls, config: dict[str, Any]) -> Self:
        """The config a worker was given."""
        plan = plan_from_json(config["plan"])
        assert isinstance(plan, TrainingPlan), "the driver of a training run sends one"
        return cls(plan=plan, text=config["text"], weights=config["weights"], job=config["job"])


@dataclass(frozen=True, kw_only=True, slots=True)
class HostResult:
    """How the run ended; equal on all hosts."""

    step: int
    stopped: bool
    eval_loss: float | None
    bits_per_byte: float | None


def train_host(config: dict[str, Any]) -> HostResult:
    """Train this host's share of the run to its end.

    Raises:
        PreemptedError: A host is about to be taken away, and all have saved and left.
        TpuctlError: As ``train.loop.run`` does, or the devices are not the plan's.
    """
    given = HostConfig.from_ray(config)
    os.environ.update(given.plan.job.env | given.plan.job.secrets)
    # Not at the top of this file: the driver imports it too, and must not touch the chips.
    from tpuctl.entrypoints.programs import keep_programs
    from tpuctl.train.devices import verify_devices
    from tpuctl.train.loop import run

    # They tell of every step of a save and every small file; what matters of it comes as our own events.
    for name in ("absl", "orbax", "fsspec", "gcsfs"):
        logging.getLogger(name).setLevel(logging.WARNING)
    simulated = is_simulated()
    verify_devices(given.plan, simulated=simulated)
    keep_programs(given.plan, tell=tell_note)
    watch, recorder = StopWatch(given.job), Recorder(given.plan.run.directory)
    try:
        return _result(run(_task(given, lambda: _reason_to_stop(watch), recorder, simulated=simulated)))
    finally:
        watch.close()
        recorder.close()


def _reason_to_stop(watch: StopWatch) -> StopReason | None:
    from tpuctl.train.stopping import StopReason

    if watch.asked():
        return StopReason.REQUESTED
    return StopReason.PREEMPTED if noticed() else None


def _task(given: HostConfig, stop: StopPoll, recorder: Recorder, *, simulated: bool) -> Task:
    from tpuctl.entrypoints.ray_feed import RayFeed
    from tpuctl.mesh import create_mesh, host_rows
    from tpuctl.train.checkpoint import Checkpoints
    from tpuctl.train.program import program_for
    from tpuctl.train.provenance import provenance_of
    from tpuctl.train.task import Task

    plan, text = given.plan, given.text
    mesh = create_mesh(plan.mesh)
    provenance = provenance_of(plan, dataset=text.train.corpus.fingerprint, weights=given.weights, job=given.job)
    return Task(
        plan=plan,
        program=program_for(plan, mesh, real_vocab=text.tokenizer().vocab_size),
        feed=RayFeed(
            text.train,
            held_out=text.held_out,
            rows=host_rows(mesh, global_batch=plan.train.global_batch),
            readers=plan.data.readers_per_host,
        ),
        checkpoints=Checkpoints(
            join(plan.run.directory, "checkpoints"), provenance=provenance, keep=plan.checkpoint.keep
        ),
        emit=recorder.take,
        stop=stop,
        simulated=simulated,
    )


class Recorder:
    """Tells the terminal of every event, and the run directory of those that belong to its history.

    Only the first host has steps to tell, so only it ever writes there.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._metrics: MetricsWriter | None = None
        self._resume_step: int | None = None

    def take(self, item: Event) -> None:
        """Print the event; keep it if it is a metric."""
        emit_event(item)
        if item["event"] == "resume":
            self._resume_step = item["step"]
        if item["event"] in ("step", "eval"):
            self._history().append(item)

    def close(self) -> None:
        """Return once the history is kept; one that can't be is told, and is no reason to call the run failed."""
        if self._metrics is None:
            return
        try:
            self._metrics.close()
        except StorageError as error:
            emit_event(event("note", text=f"the last steps are missing from the run's history: {error.message}"))

    def _history(self) -> MetricsWriter:
        if self._metrics is None:
            self._metrics = MetricsWriter(self._directory, resume_step=self._resume_step)
        return self._metrics


def _result(found: Result) -> HostResult:
    from tpuctl.train.stopping import PreemptedError, StopReason

    if found.stopped is StopReason.PREEMPTED:
        raise PreemptedError(step=found.step)
    evaluation = found.evaluation
    return HostResult(
        step=found.step,
        stopped=found.stopped is not None,
        eval_loss=None if evaluation is None else evaluation.loss,
        bits_per_byte=None if evaluation is None else evaluation.bits_per_byte,
    )
