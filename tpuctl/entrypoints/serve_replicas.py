"""Replicas of a model, each on its own slice: Ray Serve starts, watches and counts them, the driver takes requests.

Ray Serve waits for ever for what can't be placed, so the waiting is bounded here: each replica gives up its reservation
after a deadline, and the driver gives up the deployment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
import uvicorn
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from tpuctl import errors
from tpuctl.entrypoints.prefix_router import PrefixRouter
from tpuctl.entrypoints.replica import Replica
from tpuctl.entrypoints.serve_board import Board
from tpuctl.entrypoints.serve_host import News, http_options, ready_event, server_options
from tpuctl.entrypoints.serve_ingress import Ingress
from tpuctl.entrypoints.serve_news import Teller
from tpuctl.errors import CapacityError, JobFailedError, TpuctlError
from tpuctl.plan.schema import ServingPlan, plan_to_json
from tpuctl.runs.events import Event, event
from tpuctl.serve.server import bound_socket, uvicorn_config

_POLL_SECONDS = 0.5
_HEALTH_SECONDS = 1.0
# More replicas when those there are run this share of what their engines hold.
_BUSY_SHARE = 0.7
_UPSCALE_SECONDS = 10.0
# Beyond what a reservation may take: the process has to start, the model to load and compile.
_START_MARGIN_SECONDS = 600.0


class ReplicatedEndpoint:
    """The endpoint of all replicas of a plan's model."""

    def __init__(self, plan: ServingPlan, *, job: str) -> None:
        """Takes the port, starts nothing. Ray Serve knows the model as ``job``."""
        self._plan = plan
        self._job = job
        self._options = server_options(plan)
        self._socket = bound_socket(self._options)
        self._board: Any = ray.remote(Board).options(num_cpus=0).remote()
        self._teller = Teller(plan.run.directory)
        self._ready = False
        self._began = time.monotonic()

    def run(self, *, stop: Callable[[], bool]) -> None:
        """Serve until told to stop.

        Raises:
            CapacityError: No slice came in time.
            JobFailedError: Ray Serve has given up.
        """
        serve.start(proxy_location="Disabled")
        try:
            targets = [serve.RunTarget(target=self._deployment(), name=self._job, route_prefix=None)]
            (handle,) = serve.run_many(targets, wait_for_applications_running=False)
            asyncio.run(self._serve(handle, stop))
        finally:
            serve.delete(self._job)
            self._teller.close()

    def _deployment(self) -> Any:
        plan, endpoint = self._plan, self._plan.endpoint
        scaling: dict[str, Any] = {"num_replicas": endpoint.max_replicas}
        if endpoint.min_replicas < endpoint.max_replicas:
            scaling = {
                "autoscaling_config": AutoscalingConfig(
                    min_replicas=endpoint.min_replicas,
                    initial_replicas=max(1, endpoint.min_replicas),
                    max_replicas=endpoint.max_replicas,
                    target_ongoing_requests=max(1.0, _BUSY_SHARE * plan.engine.max_sequences),
                    upscale_delay_s=_UPSCALE_SECONDS,
                    downscale_delay_s=endpoint.idle_seconds,
                )
            }
        deployment: Any = serve.deployment(
            Replica,
            name=endpoint.name.replace("/", "--"),
            ray_actor_options={"num_cpus": 1},
            max_ongoing_requests=plan.engine.max_sequences,
            max_queued_requests=endpoint.max_waiting,
            health_check_period_s=_HEALTH_SECONDS,
            health_check_timeout_s=30.0,
            graceful_shutdown_timeout_s=endpoint.drain_seconds,
            max_constructor_retry_count=plan.job.max_failures + 1,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),  # type: ignore[arg-type]
            **scaling,
        )
        return deployment.bind(plan_to_json(plan), self._board)

    async def _serve(self, handle: Any, stop: Callable[[], bool]) -> None:
        endpoint = self._plan.endpoint
        limits = http_options(endpoint)
        ingress = Ingress(handle, limits=limits, timeout_seconds=endpoint.timeout_seconds)
        server = uvicorn.Server(uvicorn_config(ingress, self._options))
        listening = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not (stop() or listening.done()):
                ingress.status = await asyncio.to_thread(self._look)
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            server.should_exit = True
            await listening

    def _look(self) -> str:
        """Tell what is new; how the endpoint is.

        Raises:
            TpuctlError: It will not come to be.
        """
        failures = self._tell_board()
        if self._ready:
            return "ready" if self._is_running() else "a replica is being started"
        if failures:
            raise _error(failures[0])
        if self._is_running():
            self._ready = True
            self._teller.tell_one(self._ready_event())
            return "ready"
        if time.monotonic() - self._began > self._plan.job.start_timeout_seconds + _START_MARGIN_SECONDS:
            raise CapacityError(
                "the replicas did not all become ready in time", hint="[job] start_timeout waits longer"
            )
        return "starting"

    def _is_running(self) -> bool:
        app = serve.status().applications[self._job]
        if app.status is ApplicationStatus.DEPLOY_FAILED:
            told = "; ".join(deployment.message for deployment in app.deployments.values())
            raise JobFailedError(f"Ray Serve has given up on the replicas: {told or app.message}")
        return app.status is ApplicationStatus.RUNNING

    def _tell_board(self) -> list[Event]:
        """Tell what the replicas are at; why some of them failed."""
        news: News = ray.get(self._board.news.remote(since=self._teller.told))
        failed = [item for item in news.events if item["event"] == "failed"]
        # Only the job as a whole fails; of one replica that does, Ray Serve starts another.
        notes = [event("note", text=f"a replica failed: {item['reason']}") for item in failed]
        others = [item for item in news.events if item["event"] != "failed"]
        self._teller.tell(replace(news, events=[*others, *notes]))
        return failed

    def _ready_event(self) -> Event:
        port = int(self._socket.getsockname()[1])
        return ready_event(self._plan, port=port, seconds=time.monotonic() - self._began)


def _error(failed: Event) -> TpuctlError:
    """What a replica failed with."""
    kind = getattr(errors, failed["error"], JobFailedError)
    error: TpuctlError = kind(failed["reason"], hint=failed["hint"])
    return error
