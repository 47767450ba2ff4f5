"""What a host of a slice that has one model does: a process with its chips that joins the others, follows a leader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpuctl.engine.frames import connect
from tpuctl.engine.lockstep import Follower, Tell
from tpuctl.engine.options import EngineOptions
from tpuctl.entrypoints.local_model import LocalModel
from tpuctl.entrypoints.seats import Seat, is_simulated, meeting_address, take_seat
from tpuctl.plan.schema import InferencePlan, ServingPlan, plan_from_json

# A host that is gone costs all of them, and the sooner the others know, the sooner they start again.
_HEARTBEAT_SECONDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """How a host finds the others and its leader.

    Attributes:
        number: Of this host, its JAX process id.
        coordinator: Where the JAX processes meet.
        leader: Where the leader listens.
        word: What it wants to hear.
        timeout_seconds: Bound of the wait for the others.
        options: The engine's.
    """

    number: int
    coordinator: str
    leader: tuple[str, int]
    word: str
    timeout_seconds: float
    options: EngineOptions


class RunnerHost:
    """To be made a Ray actor, of which Ray's own thread runs one call at a time."""

    def __init__(self, plan_document: dict[str, Any]) -> None:
        plan = plan_from_json(plan_document)
        assert isinstance(plan, ServingPlan | InferencePlan), "other jobs have no engine"
        self._plan = plan

    def seat(self) -> tuple[Seat, int]:
        """Which host of which slice this is, and its process id there."""
        return take_seat(), os.getpid()

    def meeting_address(self) -> tuple[str, int]:
        """See ``seats.meeting_address``."""
        return meeting_address()

    def run(self, joining: Joining) -> None:
        """Join, load the weights, follow the leader until it says stop.

        Raises:
            TpuctlError: The plan can't be run here.
            PeerGoneError: The leader is gone.
        """
        plan = self._plan
        os.environ.update(plan.job.env | plan.job.secrets)
        os.environ.setdefault("JAX_PLATFORMS", "tpu")
        _join(joining, hosts=plan.slice.total_hosts)
        # Not at the top: the leader imports this file too, and must not touch the chips.
        from tpuctl.entrypoints.ready_runner import ready_runner, take_devices

        channel = connect(
            joining.leader, number=joining.number, word=joining.word, timeout_seconds=joining.timeout_seconds
        )
        follower = Follower(channel, speaks=joining.number == 0)

        def tell(phase: str, **fields: Any) -> None:
            follower.tell(phase=phase, **fields)

        with _local(plan, tell=tell) as model:
            take_devices(plan, simulated=is_simulated(), tell=tell)
            runner, forward = ready_runner(model, joining.options, tell=tell)
        follower.run(runner, forward)


@contextmanager
def _local(plan: ServingPlan | InferencePlan, *, tell: Tell) -> Iterator[LocalModel]:
    """The plan's model in folders of this host, as long as it is loaded."""
    if isinstance(plan, InferencePlan):
        yield LocalModel.inferred(plan)
        return
    from tpuctl.entrypoints.serve_model import local_plan

    with local_plan(plan, tell=tell) as found:
        yield LocalModel.served(found)


def _join(joining: Joining, *, hosts: int) -> None:
    """Form one JAX cluster. A process on its own has nobody to join."""
    import jax

    if hosts > 1:
        jax.distributed.initialize(
            joining.coordinator,
            hosts,
            joining.number,
            initialization_timeout=int(joining.timeout_seconds),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
