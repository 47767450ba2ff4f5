"""What to do when workers fail, and what to say: a restart where one may help, one reason where it can't.

Ray Train retries every failure alike. An error we raised ourselves with a reason (the data, a loss that is no
number, a checkpoint of another model) comes again at the next try, so it ends the run at once. A host that is taken
away is nobody's failure: the run goes on from the checkpoint made on the notice, and its budget is left as it was.
"""

from __future__ import annotations

from ray.exceptions import RayTaskError
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
)
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from tpuctl.entrypoints.emit import emit
from tpuctl.errors import CapacityError, JobFailedError, TpuctlError
from tpuctl.train.stopping import PreemptedError


class ReasonedFailurePolicy(DefaultFailurePolicy):
    """Retries lost workers as often as the plan allows, and never an error that has a reason."""

    def __init__(self, failure_config: FailureConfig) -> None:
        super().__init__(failure_config)
        self._restarts = 0

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """Raise or retry; says which on the terminal."""
        preempted = preemption_of(training_failed_error)
        if preempted is not None:
            self._restarts += 1
            emit("note", text=f"{preempted.message}; restart {self._restarts} from there, not counted as a failure")
            return FailureDecision.RETRY
        if known_error(training_failed_error) is not None:
            return FailureDecision.RAISE
        decision: FailureDecision = super().make_decision(training_failed_error)
        if decision is FailureDecision.RETRY:
            self._restarts += 1
            emit(
                "note", text=f"{first_words(training_failed_error)}; restart {self._restarts} from the last checkpoint"
            )
        return decision


def explain(error: TrainingFailedError, *, start_timeout_seconds: float) -> TpuctlError:
    """The error of ours that says why training failed."""
    known = known_error(error)
    if known is not None:
        return known
    if isinstance(error, ControllerError):
        cause = error.controller_failure
        if isinstance(cause, WorkerGroupStartupTimeoutError):
            return CapacityError(
                f"the slice's hosts did not all come within {start_timeout_seconds:.0f} s",
                hint="`tpuctl cluster status` says why a slice is not free; [job] start_timeout waits longer",
            )
        if isinstance(cause, WorkerGroupStartupFailedError):
            return CapacityError(f"the slice's hosts could not be started: {_first_line(str(cause))}")
        return JobFailedError(f"Ray Train's controller failed: {_first_line(str(cause))}")
    return JobFailedError(first_words(error))


def preemption_of(error: TrainingFailedError) -> PreemptedError | None:
    """The notice behind a failure, if any worker left on one; what the others then died of is its doing."""
    return next((cause for cause in _causes(error) if isinstance(cause, PreemptedError)), None)


def task_reason(error: RayTaskError) -> TpuctlError:
    """The error of ours that a task of an actor failed with, or one that says what else it was."""
    cause = error.cause
    if isinstance(cause, TpuctlError):
        # Made anew: Ray has added a traceback to the text of this one.
        return type(cause)(cause.message, hint=cause.hint, where=cause.where)
    return JobFailedError(f"{type(cause).__name__}: {_first_line(str(cause))}")


def known_error(error: TrainingFailedError) -> TpuctlError | None:
    """The error of ours behind a failure of Ray Train, that of the lowest rank that has one."""
    return next((cause for cause in _causes(error) if isinstance(cause, TpuctlError)), None)


def _causes(error: TrainingFailedError) -> list[BaseException]:
    """What the workers died of, by rank, or the controller."""
    causes: list[BaseException] = []
    if isinstance(error, WorkerGroupError):
        causes = [error.worker_failures[rank] for rank in sorted(error.worker_failures)]
    elif isinstance(error, ControllerError):
        causes = [error.controller_failure]
    return [_innermost(cause) for cause in causes]


def first_words(error: TrainingFailedError) -> str:
    """A failure in one line: which worker, and the last line of what it said."""
    if not isinstance(error, WorkerGroupError):
        return _first_line(str(error))
    parts = []
    for rank, cause in sorted(error.worker_failures.items()):
        inner = _innermost(cause)
        parts.append(f"worker {rank}: {type(inner).__name__}: {_first_line(str(inner))}")
    return "; ".join(parts)


def _innermost(error: BaseException) -> BaseException:
    while True:
        inner = error._base_exc if isinstance(error, UserExceptionWithTraceback) else getattr(error, "cause", None)
        inner = inner or error.__cause__
        if not isinstance(inner, BaseException):
            return error
        error = inner


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no words"
