"""At which steps something happens besides training."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.plan.schema import TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Cadence:
    """What is due after a step. ``every`` fields of 0 mean never; the end of a run has its own rules."""

    log_every: int
    eval_every: int
    save_every: int
    has_held_out: bool

    @classmethod
    def of(cls, plan: TrainingPlan) -> Cadence:
        """The cadence of a plan; without held-out text nothing is ever evaluated."""
        has_held_out = plan.data.eval_uri is not None
        return cls(
            log_every=plan.train.log_every,
            eval_every=plan.train.eval_every if has_held_out else 0,
            save_every=plan.checkpoint.every,
            has_held_out=has_held_out,
        )

    def logs(self, step: int) -> bool:
        """Whether the step is told."""
        return _due(step, self.log_every)

    def evaluates(self, step: int) -> bool:
        """Whether the held-out loss is measured after the step."""
        return _due(step, self.eval_every)

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is saved after the step."""
        return _due(step, self.save_every)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
