"""The serve entrypoint: the driver, which reserves the slice whole, has its host serve, and tells how it goes.

One process holds the slice's chips, runs the engine and answers HTTP. If it dies it is started again in the same
reservation, as often as the plan allows; a failure with a reason ends the job at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from tpuctl import __version__
from tpuctl.entrypoints.attempt import HeldRun
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.emit import emit, emit_event
from tpuctl.entrypoints.failures import task_reason
from tpuctl.entrypoints.reservation import Reservation, reserved
from tpuctl.entrypoints.serve_host import CALLS_AT_ONCE, News, ServeHost
from tpuctl.entrypoints.stopping import stop_watch
from tpuctl.errors import JobFailedError
from tpuctl.plan.schema import EmbeddingPlan, ServingPlan, plan_to_json
from tpuctl.runs.events import event
from tpuctl.runs.record import EventsWriter

TELL_SECONDS = 5.0
# Beyond the time to drain: for the process to end.
_MARGIN_SECONDS = 10.0


def main(plan: ServingPlan | EmbeddingPlan) -> int:
    """Serve until told to stop; the job's exit code.

    Raises:
        TpuctlError: The endpoint failed for a reason we can name.
    """
    identity = begin(plan)
    with HeldRun(plan, identity, version=__version__) as run, bounded(plan, identity):
        _serve(plan, identity.submission_id)
        run.ended("stopped")
    return 0


def _serve(plan: ServingPlan | EmbeddingPlan, job: str) -> None:
    started = time.monotonic()
    with stop_watch(job) as asked, reserved(plan.slice, timeout_seconds=plan.job.start_timeout_seconds) as slices:
        emit("phase", phase="reserved", seconds=time.monotonic() - started)
        for failures in range(plan.job.max_failures + 1):
            try:
                _Endpoint(plan, slices, stop=asked).run()
                break
            except ray.exceptions.RayTaskError as error:
                raise task_reason(error) from error
            except ray.exceptions.RayActorError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, ray.exceptions.RayTaskError):  # it never came to be, and the reason is ours
                    raise task_reason(cause) from error
                if failures == plan.job.max_failures:
                    raise JobFailedError(f"the serving process died {failures + 1} times") from error
                emit("note", text=f"the serving process died; restart {failures + 1}")
    emit("stopped", reason="requested")


class _Endpoint:
    """One life of the serving process."""

    def __init__(self, plan: ServingPlan | EmbeddingPlan, slices: Reservation, *, stop: Callable[[], bool]) -> None:
        self._plan = plan
        self._stop = stop
        options = {"max_concurrency": CALLS_AT_ONCE, "max_restarts": 0, **slices.options(0)}
        self._host: Any = ray.remote(ServeHost).options(**options).remote(plan_to_json(plan))
        self._history = EventsWriter(plan.run.directory)
        self._num_phases = 0
        self._told: dict[str, Any] = {}

    def run(self) -> None:
        """Serve until told to stop; raises what ended it otherwise."""
        running, ready = self._host.run.remote(), self._host.ready.remote()
        try:
            while not self._stop():
                done, _ = ray.wait([running, *([ready] if ready is not None else [])], timeout=1.0)
                if running in done:
                    ray.get(running)
                    return
                self._tell_news()
                if done:
                    self._tell("ready", **ray.get(ready))
                    ready = None
            self._end(running)
        finally:
            ray.kill(self._host)
            self._history.close()

    def _end(self, running: Any) -> None:
        self._host.stop.remote()
        seconds = self._plan.endpoint.drain_seconds + _MARGIN_SECONDS
        done, _ = ray.wait([running], timeout=seconds)
        if not done:
            emit("note", text=f"the endpoint did not end within {seconds:.0f} s and is killed")

    def _tell_news(self) -> None:
        """What the process has to tell; nothing while it is too busy to answer."""
        try:
            news: News = ray.get(self._host.news.remote(since=self._num_phases), timeout=TELL_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return
        self._num_phases += len(news.phases)
        for item in news.phases:
            emit_event(item)
        self._history.append(news.phases)
        if news.figures is not None:
            self._tell_figures(news.figures)

    def _tell_figures(self, figures: dict[str, Any]) -> None:
        """Every few seconds, as long as there is something to tell."""
        told, now = self._told, event("serving", **figures)
        since = now["at"] - told.get("at", now["at"])
        if told and since < TELL_SECONDS:
            return
        self._told = now
        made = figures["output_tokens"] - told.get("output_tokens", figures["output_tokens"])
        if made or figures["running"] or figures["waiting"]:
            emit_event({**now, "tokens_per_second": made / since if since else None})

    def _tell(self, name: str, **fields: Any) -> None:
        item = event(name, **fields)
        emit_event(item)
        self._history.append([item])
