"""What each host of the slice does in a training run: the process in which JAX lives."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from tpuctl.entrypoints.emit import emit_event
from tpuctl.plan.schema import Plan, plan_from_json, plan_to_json
from tpuctl.runs.events import Event
from tpuctl.runs.record import EventsWriter, MetricsWriter
from tpuctl.train.data.stream import Text


@dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """What the driver gives every host."""

    plan: Plan
    text: Text
    job: str

    def to_ray(self) -> dict[str, Any]:
        """The dictionary that Ray Train hands to the work."""
        return {"plan": plan_to_json(self.plan), "text": self.text, "job": self.job}

    @classmethod
    def from_ray(cls, config: dict[str, Any]) -> Self:
        """The config a worker was given."""
        return cls(plan=plan_from_json(config["plan"]), text=config["text"], job=config["job"])


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
        TpuctlError: As ``train.loop.run`` does, or the devices are not the plan's.
    """
    given = HostConfig.from_ray(config)
    os.environ.update(given.plan.job.env | given.plan.job.secrets)
    # Here and not above: the driver imports this module too, and must not touch the chips.
    import jax

    from tpuctl.entrypoints.ray_feed import RayFeed
    from tpuctl.entrypoints.stopping import StopWatch
    from tpuctl.mesh import create_mesh, host_rows
    from tpuctl.train.checkpoint import Checkpoints
    from tpuctl.train.devices import verify_devices
    from tpuctl.train.loop import run
    from tpuctl.train.program import make_program
    from tpuctl.train.provenance import provenance_of
    from tpuctl.train.stopping import StopReason
    from tpuctl.train.task import Task
