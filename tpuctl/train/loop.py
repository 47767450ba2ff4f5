"""The training loop: restore or begin, compile, step, report, save, end; on every host the same, at the same step.

The loop runs one step ahead of what it knows: while the devices run step k it prepares the batch of k + 1 and
reads the metrics of k - 1, so no device waits for Python. Everything that ends or interrupts training (a stop
request, the end of the data, a loss that is no number) is decided from values that are equal on all hosts.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from tpuctl.errors import DataError, TpuctlError
from tpuctl.train.agreement import largest
from tpuctl.train.batches import GlobalBatch, GlobalBatches, first_cursor, local_rows
from tpuctl.train.cadence import Cadence
from tpuctl.train.checkpoint import SaveKind
from tpuctl.train.evaluation import Evaluation, Evaluator
from tpuctl.train.meter import Meter
from tpuctl.train.program import Metrics
from tpuctl.train.stopping import NonFiniteLoss, StopReason
from tpuctl.train.task import Result, Task
from tpuctl.train.telling import Teller
from tpuctl.train.watchdog import Watchdog, end_process

LAST_SAVE_SECONDS = 60.0


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
        attempt.tell.failed(error.message, step=attempt.step)
        # The save under way may be the last good one. Other errors mean that a host is gone: then it can't end.
        task.checkpoints.wait(timeout_seconds=LAST_SAVE_SECONDS)
        raise
    finally:
        attempt.batches.close()


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """A step the devices have been given, and the metrics they will have made of it."""

    step: int
    epoch: int
    metrics: Metrics


class _Attempt:
    """One attempt: where it stands, and what is under way."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.step = 0
        self.tell = Teller(task)
        self.batches = GlobalBatches(task.plan, task.program, feed=task.feed, stop=task.stop)
        self._last_step = task.plan.train.steps
        self._cadence = Cadence.of(task.plan)
        self._meter = Meter(task.clock)
        self._watchdog = Watchdog(seconds=task.watchdog_seconds, on_silence=self._give_up)
        self._under_way: deque[_Dispatched] = deque()
        self._stopping = False
        self._loss: float | None = None
        self._evaluation: Evaluation | None = None
        self._began = task.clock()

    def run(self) -> Result:
        self.tell.joined()
        state, train_step = self._start()
        with self._watchdog:
            if train_step is not None:
                state = self._train(state, train_step)
            return self._finish(state)

    def _start(self) -> tuple[Any, Any]:
        """The state to go on from and the compiled step, or no step where none is left to do.

        Compiling the step takes longest, so the state and the first batch are made beside it.
        """
        task, program, checkpoints = self.task, self.task.program, self.task.checkpoints
        found = checkpoints.choose(task.plan.checkpoint.resume)
        with ThreadPoolExecutor(1, thread_name_prefix="state") as beside:
            if found is None:
                self.batches.start(first_cursor(program.abstract_state.cursor))
                making = beside.submit(program.init)
            else:
                self.step = found
                making = beside.submit(self._restore, found)
            train_step = self._compiled() if self.step < self._last_step else None
            state = self._made(making) if found is None else self._restored(making)
        self.tell.notes(checkpoints.take_notes())
        return state, train_step

    def _made(self, making: Future[Any]) -> Any:
        if self.task.plan.weights is None:
            return making.result()
        with self.tell.phase("loaded weights"):
            return making.result()

    def _restore(self, step: int) -> Any:
        program = self.task.program
        return program.completed(self.task.checkpoints.restore(step, program.kept(program.abstract_state)))

    def _restored(self, restoring: Future[Any]) -> Any:
        with self.tell.phase("restored"):
            state = restoring.result()
        self.tell.resumed(self.step)
        self.batches.start(local_rows(state.cursor))
        return state

    def _compiled(self) -> Any:
        program = self.task.program
        with self.tell.phase("compiled"):
            return program.train_step.lower(program.abstract_state, program.abstract_batch).compile()

    def _train(self, state: Any, train_step: Any) -> Any:
        with self.tell.phase("data"):
            batch = self.batches.next(self._meter)
        self.tell.training()
        self._meter = Meter(self.task.clock)
        while batch is not None and not self._stopping:
            state, metrics = train_step(state, batch.arrays)
            self.step += 1
            self._under_way.append(_Dispatched(self.step, batch.epoch, metrics))
            batch = self._next_batch()
            self._settle(keep=1)
            self.tell.saved(self.task.checkpoints.poll())
            self._between_steps(state)
        self._settle(keep=0)
        return state

    def _next_batch(self) -> GlobalBatch | None:
        return self.batches.next(self._meter) if self.step < self._last_step else None

    def _settle(self, *, keep: int) -> None:
        """Read the metrics of all steps under way but the ``keep`` newest."""
        while len(self._under_way) > keep:
            dispatched = self._under_way.popleft()
            self._account(dispatched, jax.device_get(dispatched.metrics))
            self._watchdog.beat()

    def _account(self, dispatched: _Dispatched, values: Any) -> None:
        step, tokens = dispatched.step, int(values["tokens"])
        if not values["finite"]:
            self.task.checkpoints.wait(timeout_seconds=LAST_SAVE_SECONDS)
            raise NonFiniteLoss(
                step=step,
                loss=float(values["loss"]),
                grad_norm=float(values["grad_norm"]),
                last_checkpoint=self.task.checkpoints.latest(),
            )
        if tokens == 0:
            raise DataError(f"step {step}: no host had a token to learn from")
        self._loss = float(values["loss"])
        self._stopping = self._stopping or int(values["stop_votes"]) > 0
        self._meter.count(tokens=tokens)
        if self._cadence.logs(step) or step == self._last_step:
            self.tell.step(step, values, epoch=dispatched.epoch, speed=self._meter.report())

    def _between_steps(self, state: Any) -> None:
        """Evaluate and save where it is due; only after a look at the step that made the state."""
        evaluates, saves = self._cadence.evaluates(self.step), self._cadence.saves(self.step)
        if not (evaluates or saves):
            return
        self._settle(keep=0)
        # The last state is evaluated and saved at the end, under its right name.
        if self._stopping or self.step == self._last_step:
            return
        with self._meter.aside():
            if evaluates:
                self._evaluate(state)
            if saves:
                self._save(state, "periodic")

    def _evaluate(self, state: Any) -> None:
        plan, program = self.task.plan, self.task.program
        evaluator = Evaluator(
            program=program, feed=self.task.feed, max_batches=plan.train.eval_batches, beat=self._watchdog.beat
        )
        self._evaluation = evaluator.evaluate(self.step, state.params)
        if self._evaluation is None:
            self.tell.notes(["the held-out text has no tokens: nothing to evaluate on"])
        else:
            self.tell.evaluated(self._evaluation)

    def _save(self, state: Any, kind: SaveKind) -> None:
        loss = self._evaluation.loss if self._evaluation is not None and self._evaluation.step == self.step else None
        self.task.checkpoints.save(self.step, self.task.program.kept(state), kind=kind, eval_loss=loss)
        self.tell.notes(self.task.checkpoints.take_notes())
        self._watchdog.beat()

    def _finish(self, state: Any) -> Result:
        """Leave a complete checkpoint, then say how it ended."""
        stopped = None
        if self._stopping and self.step < self._last_step:
            stopped = self._agreed_reason()
        elif self._cadence.has_held_out and not (self._evaluation and self._evaluation.step == self.step):
            self._evaluate(state)
        self._save(state, "final" if stopped is None else "stop")
        self.task.checkpoints.close()
        self.tell.saved(self.task.checkpoints.poll())
        result = self._result(stopped)
        if stopped is None:
            self.tell.done(result)
        else:
            self.tell.stopped(result)
        return result

    def _agreed_reason(self) -> StopReason:
        """Why all hosts end: some have a reason of their own, and the weightiest is everyone's."""
        reasons, own = list(StopReason), self.task.stop()
        return reasons[largest(-1 if own is None else reasons.index(own))]

    def _result(self, stopped: StopReason | None) -> Result:
        checkpoints = self.task.checkpoints
        return Result(
            step=self.step,
            loss=self._loss,
            evaluation=self._evaluation,
            stopped=stopped,
            checkpoints=tuple(checkpoints.path(step) for step in checkpoints.steps()),
            seconds=self.task.clock() - self._began,
        )

    def _give_up(self) -> None:
        host, seconds = jax.process_index(), self.task.watchdog_seconds
        reason = f"host {host}: no step finished for {seconds:g} s after step {self.step}; the stacks are in its log"
        self.tell.failed(reason, step=self.step)
        end_process()
