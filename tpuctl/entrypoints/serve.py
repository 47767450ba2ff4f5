"""The serve entrypoint: the driver, which reserves the slice whole, has its host serve, and tells how it goes.

On a slice of one host one process holds the chips, runs the engine and answers HTTP. If it dies it is started again in
the same reservation. On a slice of several hosts the driver itself answers and leads one process per host; if one dies,
all are started again, on a slice that is reserved anew. Either as often as the plan allows; a failure with a reason
ends the job at once. Replicas on several slices, of one model or of several, are Ray Serve's to start and to watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import TYPE_CHECKING, Any

import ray

from tpuctl import __version__
from tpuctl.entrypoints.attempt import HeldRun
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.failures import task_reason
from tpuctl.entrypoints.reservation import Reservation, reserved
from tpuctl.entrypoints.serve_host import CALLS_AT_ONCE, News, ServeHost
from tpuctl.entrypoints.serve_news import TELL_SECONDS, Teller
from tpuctl.entrypoints.stopping import stop_watch
from tpuctl.errors import JobFailedError
from tpuctl.plan.schema import EmbeddingPlan, ModelsPlan, ServingPlan, plan_to_json

if TYPE_CHECKING:
    from tpuctl.entrypoints.serve_gang import LeadHost

_POLL_SECONDS = 0.5
# Beyond the time to drain: for the process to end.
_MARGIN_SECONDS = 10.0


def main(plan: ServingPlan | EmbeddingPlan | ModelsPlan) -> int:
    """Serve until told to stop; the job's exit code.

    Raises:
        TpuctlError: The endpoint failed for a reason we can name.
    """
    identity = begin(plan)
    with HeldRun(plan, identity, version=__version__) as run, bounded(plan, identity):
        _serve(plan, identity.submission_id)
        run.ended("stopped")
    return 0


def _serve(plan: ServingPlan | EmbeddingPlan | ModelsPlan, job: str) -> None:
    with stop_watch(job) as asked:
        if isinstance(plan, ModelsPlan):
            _serve_replicas([plan.plan_of(model) for model in plan.models], job=job, stop=asked)
        elif isinstance(plan, EmbeddingPlan):
            _serve_on_one_host(plan, stop=asked)
        elif plan.endpoint.is_replicated:
            _serve_replicas([plan], job=job, stop=asked)
        elif plan.slice.hosts > 1:
            _lead(plan, stop=asked)
        else:
            _serve_on_one_host(plan, stop=asked)
    emit("stopped", reason="requested")


def _serve_replicas(plans: list[ServingPlan], *, job: str, stop: Callable[[], bool]) -> None:
    # Not at the top, nor below: what one of the three ways needs takes seconds to import.
    from tpuctl.entrypoints.serve_replicas import ReplicatedEndpoint

    ReplicatedEndpoint(plans, job=job).run(stop=stop)


def _serve_on_one_host(plan: ServingPlan | EmbeddingPlan, *, stop: Callable[[], bool]) -> None:
    started = time.monotonic()
    with reserved(plan.slice, timeout_seconds=plan.job.start_timeout_seconds) as slices:
        emit("phase", phase="reserved", seconds=time.monotonic() - started)
        for failures in range(plan.job.max_failures + 1):
            try:
                _Endpoint(plan, slices, stop=stop).run()
                return
            except ray.exceptions.RayTaskError as error:
                raise task_reason(error) from error
            except ray.exceptions.RayActorError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, ray.exceptions.RayTaskError):  # it never came to be, and the reason is ours
                    raise task_reason(cause) from error
                if failures == plan.job.max_failures:
                    raise JobFailedError(f"the serving process died {failures + 1} times") from error
                emit("note", text=f"the serving process died; restart {failures + 1}")


def _lead(plan: ServingPlan, *, stop: Callable[[], bool]) -> None:
    """Serve from here, where there are no chips: the hosts of the slice come and go."""
    from tpuctl.entrypoints.serve_gang import LeadHost

    host, teller = LeadHost(plan), Teller(plan.run.directory)
    with closing(teller), ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run)
        try:
            while not (running.done() or stop()):
                wait([running], timeout=_POLL_SECONDS)
                teller.tell(host.news(since=teller.told))
        finally:
            ended = running.done()
            _end_lead(host, running, seconds=plan.endpoint.drain_seconds + _MARGIN_SECONDS)
        if ended:  # what a stop cuts short is no failure
            running.result()


def _end_lead(host: LeadHost, running: Future[None], *, seconds: float) -> None:
    host.stop()
    if not wait([running], timeout=seconds).done:
        emit("note", text=f"the endpoint did not end within {seconds:.0f} s and is killed")
        host.close()


class _Endpoint:
    """One life of the serving process."""

    def __init__(self, plan: ServingPlan | EmbeddingPlan, slices: Reservation, *, stop: Callable[[], bool]) -> None:
        self._plan = plan
        self._stop = stop
        options = {"max_concurrency": CALLS_AT_ONCE, "max_restarts": 0, **slices.options(0)}
        self._host: Any = ray.remote(ServeHost).options(**options).remote(plan_to_json(plan))
        self._teller = Teller(plan.run.directory)

    def run(self) -> None:
        """Serve until told to stop; raises what ended it otherwise."""
        running = self._host.run.remote()
        try:
            while not self._stop():
                done, _ = ray.wait([running], timeout=_POLL_SECONDS)
                if done:
                    ray.get(running)
                    return
                self._tell_news()
            self._end(running)
        finally:
            ray.kill(self._host)
            self._teller.close()

    def _end(self, running: Any) -> None:
        self._host.stop.remote()
        seconds = self._plan.endpoint.drain_seconds + _MARGIN_SECONDS
        done, _ = ray.wait([running], timeout=seconds)
        if not done:
            emit("note", text=f"the endpoint did not end within {seconds:.0f} s and is killed")

    def _tell_news(self) -> None:
        """What the process has to tell; nothing while it is too busy to answer."""
        try:
            news: News = ray.get(self._host.news.remote(since=self._teller.told), timeout=TELL_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return
        self._teller.tell(news)
