"""The training loop: restore or begin, compile, step, report, save, end; on every host the same, at the same step.

The loop runs one step ahead of what it knows: while the devices run step k it prepares the batch of k + 1 and
reads the metrics of k - 1, so no device waits for Python. Everything that ends or interrupts training (a stop
request, the end of the data, a loss that is no number) is decided from values that are equal on all hosts.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tpuctl.errors import DataError, TpuctlError
from tpuctl.plan.schema import Plan
from tpuctl.runs.events import Event, event
from tpuctl.train.batch import BatchFeed
from tpuctl.train.batches import GlobalBatch, GlobalBatches
from tpuctl.train.cadence import Cadence
from tpuctl.train.checkpoint import Checkpoints, SaveKind
from tpuctl.train.evaluation import Evaluation, Evaluator
from tpuctl.train.meter import Clock, Meter
from tpuctl.train.program import Metrics, Program
from tpuctl.train.stopping import NonFiniteLoss, StopPoll, StopReason
from tpuctl.train.watchdog import DEFAULT_SECONDS, Watchdog, end_process


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

    plan: Plan
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


def run(task: Task) -> Result:
    """Train until the plan's last step, the end of the data, or a reason to stop. Ends with a complete checkpoint.

    Raises:
        NonFiniteLoss: Loss or gradient is no number; the last good checkpoint is kept.
        CheckpointError: A save or restore failed, or the plan's resume rule can't be kept.
        DataError: The data can't be read.
    """
    attempt = _Attempt(task)
    try:
        return attempt.run()
    except TpuctlError as error:
        task.emit(event("failed", reason=error.message, step=attempt.step, host=jax.process_index()))
        raise
    finally:
        # On an error too: a save under way is perhaps the last good one.
        task.checkpoints.wait()
        attempt.batches.close()


@dataclass(slots=True)
class _Attempt:
    task: Task
    step: int = 0
    loss: float | None = None
    evaluation: Evaluation | None = None
    stopping: bool = False
    in_flight: deque[tuple[int, int, Metrics]] = field(default_factory=deque)
    began: float = field(init=False)
    meter: Meter = field(init=False)
    cadence: Cadence = field(init=False)
    batches: GlobalBatches = field(init=False)
    watchdog: Watchdog = field(init=False)
    evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        task = self.task
        self.began = task.clock()
        self.meter = Meter(task.clock)
        self.cadence = Cadence.of(task.plan)
        self.batches = GlobalBatches(task.plan, task.program, feed=task.feed, stop=task.stop)
        self.watchdog = Watchdog(seconds=task.watchdog_seconds, on_silence=self._give_up)
        self.evaluator = Evaluator(
            program=task.program, feed=task.feed, max_batches=task.plan.train.eval_batches, beat=self.watchdog.beat
        )

    def run(self) -> Result:
        self.task.emit(_host_event(self.task))
        state, train_step = self._start()
        with self.watchdog:
            if train_step is not None:
                state = self._train(state, train_step)
            return self._finish(state)

    # ── beginning ──

    def _start(self) -> tuple[Any, Any]:
        """The state to go on from and the compiled step, made side by side; no step where none is left to do."""
        task, program = self.task, self.task.program
        resumed_from = task.checkpoints.choose(task.plan.checkpoint.resume)
        with ThreadPoolExecutor(1, thread_name_prefix="restore") as beside:
            restoring = None
            if resumed_from is None:
                self.batches.start(_zero_cursor(program))
            else:
                self.step = resumed_from
                restoring = beside.submit(task.checkpoints.restore, resumed_from, program.abstract_state)
            train_step = self._compile() if self.step < task.plan.train.steps else None
            state = program.init() if restoring is None else self._restored(restoring)
        self._tell_notes()
        return state, train_step

    def _compile(self) -> Any:
        with self._phase("compiled"):
            program = self.task.program
            return program.train_step.lower(program.abstract_state, program.abstract_batch).compile()

    def _restored(self, restoring: Future[Any]) -> Any:
        with self._phase("restored"):
            state = restoring.result()
        self._tell("resume", step=self.step, path=self.task.checkpoints.path(self.step))
        self.batches.start(local_rows(state.cursor))
        return state

    # ── training ──

    def _train(self, state: Any, train_step: Any) -> Any:
        with self._phase("data"):
            batch = self.batches.next(self.meter)
        self._tell("phase", phase="training")
        self.meter = Meter(self.task.clock)
        while batch is not None and not self.stopping:
            state, metrics = train_step(state, batch.arrays)
            self.step += 1
            self.in_flight.append((self.step, batch.epoch, metrics))
            batch = self._next_batch()
            self._settle(keep=1)
            self._poll_checkpoints()
            self._between_steps(state)
        self._settle(keep=0)
        return state

    def _next_batch(self) -> GlobalBatch | None:
        return self.batches.next(self.meter) if self.step < self.task.plan.train.steps else None

    def _between_steps(self, state: Any) -> None:
        """Evaluate and save where it is due. Both see only a state whose step is known to be good."""
        evaluates, saves = self.cadence.evaluates(self.step), self.cadence.saves(self.step)
        if not (evaluates or saves):
            return
        self._settle(keep=0)
        with self.meter.aside():
            if evaluates:
                self._evaluate(state)
            # The last step is saved at the end, under its right name.
            if saves and self.step < self.task.plan.train.steps and not self.stopping:
                self._save(state, "periodic")

    def _settle(self, *, keep: int) -> None:
        """Read the metrics of all but the ``keep`` newest steps under way."""
        while len(self.in_flight) > keep:
            step, epoch, metrics = self.in_flight.popleft()
            self._account(step, epoch, jax.device_get(metrics))

    def _account(self, step: int, epoch: int, values: Any) -> None:
        self.watchdog.beat()
        loss, tokens = float(values["loss"]), int(values["tokens"])
        if not values["finite"]:
            raise NonFiniteLoss(
                step=step,
                loss=loss,
                grad_norm=float(values["grad_norm"]),
                last_checkpoint=self.task.checkpoints.latest(),
            )
        if tokens == 0:
            raise DataError(f"step {step}: no host had a token to learn from")
        self.loss = loss
        self.stopping = self.stopping or int(values["stop_votes"]) > 0
        self.meter.count(tokens=tokens)
        if self.cadence.logs(step) or step == self.task.plan.train.steps:
            self._tell_step(step, epoch, values)

    # ── ending ──

    def _finish(self, state: Any) -> Result:
        stopped = (self.task.stop() or StopReason.ELSEWHERE) if self.stopping else None
        if stopped is None:
            self._evaluate_finally(state)
        self._save(state, "final" if stopped is None else "stop")
        self.task.checkpoints.close()
        self._poll_checkpoints()
        result = self._result(stopped)
        if stopped is None:
            self._tell_done(result)
        else:
            self._tell("stopped", step=self.step, path=self.task.checkpoints.path(self.step), reason=str(stopped))
        return result

    def _evaluate_finally(self, state: Any) -> None:
        is_fresh = self.evaluation is not None and self.evaluation.step == self.step
        if self.task.plan.data.eval_uri is not None and not is_fresh:
            self._evaluate(state)

    def _evaluate(self, state: Any) -> None:
        self.evaluation = self.evaluator.evaluate(self.step, state.params)
        found = self.evaluation
        if found is None:
            self._tell("note", text="the held-out text has no tokens: nothing to evaluate on")
        else:
            fields = {"loss": found.loss, "bits_per_byte": found.bits_per_byte}
            self._tell("eval", step=found.step, **fields, tokens=found.tokens, bytes=found.bytes)

    def _save(self, state: Any, kind: SaveKind) -> None:
        is_fresh = self.evaluation is not None and self.evaluation.step == self.step
        loss = self.evaluation.loss if self.evaluation is not None and is_fresh else None
        self.task.checkpoints.save(self.step, state, kind=kind, eval_loss=loss)
        self.watchdog.beat()
        self._tell_notes()

    def _result(self, stopped: StopReason | None) -> Result:
        checkpoints = self.task.checkpoints
        return Result(
            step=self.step,
            loss=self.loss,
            evaluation=self.evaluation,
            stopped=stopped,
            checkpoints=tuple(checkpoints.path(step) for step in checkpoints.steps()),
            seconds=self.task.clock() - self.began,
        )

    def _give_up(self) -> None:
        host, seconds = jax.process_index(), self.task.watchdog_seconds
        reason = f"host {host}: no step finished for {seconds:g} s after step {self.step}; the stacks are in its log"
        self.task.emit(event("failed", reason=reason, step=self.step, host=host))
        end_process()

    # ── telling ──

    def _tell(self, name: str, **fields: Any) -> None:
        if jax.process_index() == 0:
            self.task.emit(event(name, **fields))

    @contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        began = self.task.clock()
        yield
        self._tell("phase", phase=phase, seconds=self.task.clock() - began)

    def _tell_notes(self) -> None:
        for text in self.task.checkpoints.take_notes():
            self._tell("note", text=text)

    def _poll_checkpoints(self) -> None:
        for saved in self.task.checkpoints.poll():
            self._tell(
                "checkpoint", step=saved.step, path=saved.path, blocked_seconds=saved.blocked_seconds, kind=saved.kind
            )

    def _tell_step(self, step: int, epoch: int, values: Any) -> None:
        speed, steps = self.meter.report(), self.task.plan.train.steps
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

    def _tell_done(self, result: Result) -> None:
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


def local_rows(array: jax.Array) -> np.ndarray:
    """This host's rows of an array that is split over the batch axes, in order, each once."""
    shards = {shard.index[0].indices(array.shape[0])[0]: shard for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[start].data) for start in sorted(shards)])


def _zero_cursor(program: Program) -> np.ndarray:
    cursor = program.abstract_state.cursor
    slices = cursor.sharding.addressable_devices_indices_map(cursor.shape).values()
    starts = {index[0].indices(cursor.shape[0])[:2] for index in slices}
    return np.zeros((sum(stop - start for start, stop in starts), cursor.shape[1]), np.int32)


def _host_event(task: Task) -> Event:
    return event(
        "host",
        host=jax.process_index(),
        hosts=jax.process_count(),
        pid=os.getpid(),
        ip=platform.node(),
        devices=jax.local_device_count(),
        platform=jax.default_backend(),
        simulated=task.simulated,
    )
