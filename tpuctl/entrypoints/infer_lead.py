"""What leads a slice in batch inference where its hosts have the model together: a process without chips.

It reads, schedules and writes as a host by itself does; the steps of its engine run on all hosts of the slice. One of
them that is lost is the loss of all, and of this: what started it starts another.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.infer_host import HostFacts, InferHost, this_process
from tpuctl.entrypoints.reservation import Reservation
from tpuctl.entrypoints.seats import is_simulated
from tpuctl.infer.output import Output
from tpuctl.infer.parts import Part
from tpuctl.infer.replica import Done
from tpuctl.infer.rows import Rows

if TYPE_CHECKING:
    from tpuctl.engine.engine import Engine
    from tpuctl.engine.options import EngineOptions
    from tpuctl.entrypoints.runner_gang import RunnerGang
    from tpuctl.modelspec import ModelSpec


class InferLead(InferHost):
    """To be made a Ray actor of ``CALLS_AT_ONCE`` threads, on a host of the slice but without its chips."""

    def __init__(
        self, plan_document: dict[str, Any], rows: Rows, output: Output, number: int, led: Reservation
    ) -> None:
        """``led`` is the slice of that number."""
        super().__init__(plan_document, rows, output, number)
        self._plan = replace(self._plan, slice=replace(self._plan.slice, slices=1))
        self._led = led
        self._gang: RunnerGang | None = None

    def join(self) -> HostFacts:
        """Have the slice's hosts take their chips and their shares of the model, make the task ready.

        Raises:
            HostLostError: One of the hosts is gone.
            TpuctlError: The plan can't be run.
        """
        os.environ["JAX_PLATFORMS"] = "cpu"  # the chips are for the hosts' processes
        self._begin(engine=self._lead)
        platform = "cpu" if is_simulated() else "tpu"
        return this_process(self._number, devices=self._plan.slice.total_devices, platform=platform)

    def do(self, part: Part) -> Done:
        """Do a part; see ``Replica``.

        Raises:
            HostLostError: One of the slice's hosts is gone.
        """
        assert self._gang is not None, "joined first"
        with self._gang.reasons():
            return super().do(part)

    def _lead(self, spec: ModelSpec, options: EngineOptions) -> Engine:
        """The engine whose steps the slice's hosts run."""
        # Not at the top: they import jax, for which the environment is set first.
        from tpuctl.entrypoints.runner_gang import RunnerGang
        from tpuctl.entrypoints.warm_up import warm_up

        began = time.monotonic()
        self._gang = RunnerGang(self._plan, self._led, options=options)
        engine = self._gang.lead(spec, tell=self._tell)
        with self._gang.reasons():
            # Later a step that takes as long as compiling one does would be that of a host that hangs.
            warm_up(engine, tell=self._tell)
        self._tell("ready", seconds=time.monotonic() - began)
        return engine

    def _tell(self, phase: str, **fields: Any) -> None:
        emit("phase", phase=phase, slice=self._number, **fields)
