"""Why a run ends before its last step."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from tpuctl.errors import TpuctlError


class StopReason(StrEnum):
    """A wish to end early that leaves a checkpoint behind. Its text is for the log. The later one here counts more."""

    PREEMPTED = "host about to be preempted"
    REQUESTED = "stop requested"


StopPoll = Callable[[], StopReason | None]


class PreemptedError(TpuctlError):
    """A host is about to be taken away; ``step`` is saved, and training goes on from there on other hosts."""

    def __init__(self, *, step: int) -> None:
        super().__init__(f"a host is about to be preempted; step {step} is saved")
        self.step = step


class NonFiniteLoss(TpuctlError):
    """The loss or the gradient is no longer a number. ``step`` is the step that found it."""

    def __init__(self, *, step: int, loss: float, grad_norm: float, last_checkpoint: int | None) -> None:
        kept = "there is no checkpoint" if last_checkpoint is None else f"the last checkpoint is step {last_checkpoint}"
        super().__init__(
            f"step {step}: loss {loss}, gradient norm {grad_norm}; stopped on all hosts, {kept}",
            hint="lower optim.learning_rate, set optim.clip_norm or lengthen the warm-up, then start again",
        )
        self.step = step
