"""A model over all hosts of a slice, led from a process without chips.

The leader reserves the slice itself, with a deadline, has one process per host join the others, and drives them over
sockets; Ray only starts them and tells when one has died. A lost host costs all: the slice is freed, and the next
``load`` begins anew.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace

from tpuctl.engine.lockstep import Tell
from tpuctl.entrypoints.reservation import reserved
from tpuctl.entrypoints.runner_gang import RunnerGang
from tpuctl.entrypoints.serve_host import ServeHost
from tpuctl.entrypoints.serve_model import engine_options, local_plan, proven
from tpuctl.entrypoints.serve_text import load_text
from tpuctl.errors import HostLostError, JobFailedError
from tpuctl.plan.schema import ServingPlan, plan_to_json
from tpuctl.serve.server import Loaded


class GangModel:
    """The plan's model on a slice of its own. ``load`` may be called again once what it gave is lost."""

    def __init__(self, plan: ServingPlan, *, tell: Tell) -> None:
        """Reserves nothing yet. ``tell`` takes a phase's name and its fields."""
        self._plan = plan
        self._tell = tell
        self._held = ExitStack()
        self._failures = 0
        self._lost: Future[str] | None = None
        self._closed = False

    def load(self) -> Loaded:
        """Reserve, start, load, compile, check; again if a host is lost meanwhile.

        Raises:
            CapacityError: No slice came in time.
            JobFailedError: Hosts were lost too often.
            TpuctlError: The plan can't be run.
        """
        if self._lost is not None:
            self._take_loss(self._lost.result())
        while True:
            try:
                loaded = self._load()
            except HostLostError as error:
                self._take_loss(error.message)
                continue
            self._lost = loaded.lost
            return loaded

    def close(self) -> None:
        """End the hosts' processes and free the slice."""
        self._closed = True
        self._held.close()

    def _take_loss(self, reason: str) -> None:
        """Free the slice; another try unless there were enough."""
        self._tell("lost", detail=f"{reason}; all hosts are started again")
        self._held.close()
        self._failures += 1
        if self._closed or self._failures > self._plan.job.max_failures:
            raise JobFailedError(f"the hosts of the slice were lost {self._failures} times: {reason}")

    def _load(self) -> Loaded:
        plan, began = self._plan, time.monotonic()
        slices = self._held.enter_context(reserved(plan.slice, timeout_seconds=plan.job.start_timeout_seconds))
        self._tell("reserved", seconds=time.monotonic() - began)
        with local_plan(plan, tell=self._tell) as found:
            text = load_text(found)
        options = engine_options(plan, text[0])
        gang = self._held.enter_context(closing(RunnerGang(plan, slices, options=options)))
        engine = gang.lead(plan.model, tell=self._tell)
        with gang.reasons():
            return replace(proven(plan, engine, gang.hosts.forward, text, tell=self._tell), lost=gang.hosts.lost)


class LeadHost(ServeHost):
    """Answers HTTP, schedules, and leads the hosts of a slice; itself a process without chips."""

    def __init__(self, plan: ServingPlan) -> None:
        super().__init__(plan_to_json(plan))
        self._model = GangModel(plan, tell=self.tell)

    def run(self) -> None:
        """Load the model and serve it until ``stop``; load it again when its hosts are lost."""
        try:
            super().run()
        finally:
            self._model.close()

    def close(self) -> None:
        """End at once: for another thread than that of ``run``."""
        self._model.close()

    def _load(self) -> Loaded:
        self._began()
        return self._model.load()
