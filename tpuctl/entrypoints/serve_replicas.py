"""Replicas of one or several models, each on its own slice: Ray Serve starts, watches and counts them, the driver takes
requests.

Ray Serve waits for ever for what can't be placed, so the waiting is bounded here: each replica gives up its reservation
after a deadline, and the driver gives up the endpoint as long as it has not been ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import uvicorn
from ray import serve

from tpuctl import errors
from tpuctl.entrypoints.serve_board import Board
from tpuctl.entrypoints.serve_deployments import Deployments, Missing
from tpuctl.entrypoints.serve_host import News, http_options, ready_event, server_options
from tpuctl.entrypoints.serve_ingress import Behind, Ingress
from tpuctl.entrypoints.serve_news import Teller
from tpuctl.entrypoints.serve_passing import Replicas
from tpuctl.errors import CapacityError, JobFailedError, TpuctlError
from tpuctl.plan.schema import ServingPlan
from tpuctl.runs.events import Event, event
from tpuctl.serve.metrics import joined
from tpuctl.serve.served import Listed
from tpuctl.serve.server import bound_socket, uvicorn_config

_POLL_SECONDS = 0.5
# Beyond what a reservation may take: the process has to start, the model to load and compile.
_START_MARGIN_SECONDS = 600.0


class ReplicatedEndpoint:
    """The endpoint of all replicas of all models. What the plans say of the address is the same in all of them."""

    def __init__(self, plans: Sequence[ServingPlan], *, job: str) -> None:
        """Takes the port, starts nothing."""
        self._plans = plans
        self._address = plans[0].endpoint
        self._options = server_options(plans[0])
        self._socket = bound_socket(self._options)
        self._board: Any = ray.remote(Board).options(num_cpus=0).remote()
        self._deployments = Deployments(plans, job=job, board=self._board)
        self._teller = Teller(plans[0].run.directory)
        self._ready = False
        self._given_up: frozenset[str] = frozenset()
        self._began = time.monotonic()

    def run(self, *, stop: Callable[[], bool]) -> None:
        """Serve until told to stop.

        Raises:
            CapacityError: No slice came in time.
            JobFailedError: Ray Serve has given up all models, or one before the endpoint was ready.
        """
        serve.start(proxy_location="Disabled")
        try:
            asyncio.run(self._serve(self._deployments.start(), stop))
        finally:
            self._deployments.delete()
            self._teller.close()

    async def _serve(self, handles: list[Any], stop: Callable[[], bool]) -> None:
        limits, seconds = http_options(self._address), self._address.timeout_seconds
        behind = [
            Behind(listed=_listed(plan), replicas=Replicas(handle, limits=limits, timeout_seconds=seconds))
            for plan, handle in zip(self._plans, handles, strict=True)
        ]
        ingress = Ingress(behind, limits=limits, read_metrics=self._read_metrics)
        server = uvicorn.Server(uvicorn_config(ingress.app(), self._options))
        listening = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not (stop() or listening.done()):
                ingress.status = await asyncio.to_thread(self._look)
                ingress.given_up = self._given_up
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            server.should_exit = True
            await listening

    def _look(self) -> str:
        """Tell what is new; how the endpoint is.

        Raises:
            TpuctlError: It will not come to be, or has nothing left to serve.
        """
        failures, missing = self._tell_board(), self._deployments.missing()
        if not self._ready and failures:
            raise _error(failures[0])
        self._tell_given_up({name: why.reason for name, why in missing.items() if why.for_good})
        if self._ready:
            return _status(missing)
        if not missing:
            self._ready = True
            self._teller.tell_one(self._ready_event())
            return "ready"
        if time.monotonic() - self._began > self._plans[0].job.start_timeout_seconds + _START_MARGIN_SECONDS:
            message = f"the replicas did not all become ready in time: {', '.join(missing)}"
            raise CapacityError(message, hint="[job] start_timeout waits longer")
        return "starting"

    def _tell_given_up(self, lost: dict[str, str]) -> None:
        """Tell of models that will not come back, and why; the others are served on.

        Raises:
            JobFailedError: There are no others, or all were to be ready first.
        """
        told = "; ".join(f"{name}: {why}" for name, why in lost.items())
        if lost and (not self._ready or len(lost) == len(self._plans)):
            raise JobFailedError(f"Ray Serve has given up on the replicas of {told}")
        if lost.keys() - self._given_up:
            self._teller.tell_one(event("note", text=f"Ray Serve has given up on the replicas of {told}"))
        self._given_up = frozenset(lost)

    def _tell_board(self) -> list[Event]:
        """Tell what the replicas are at; why some of them failed."""
        news: News = ray.get(self._board.news.remote(since=self._teller.told))
        failed = [item for item in news.events if item["event"] == "failed"]
        # Only the job as a whole fails; of one replica that does, Ray Serve starts another.
        notes = [event("note", text=f"a replica of {item['model']} failed: {item['reason']}") for item in failed]
        others = [item for item in news.events if item["event"] != "failed"]
        self._teller.tell(replace(news, events=[*others, *notes]))
        return failed

    def _ready_event(self) -> Event:
        port = int(self._socket.getsockname()[1])
        return ready_event(self._plans, port=port, seconds=time.monotonic() - self._began)

    async def _read_metrics(self) -> bytes:
        texts = await self._board.metrics.remote()
        return joined(texts)


def _status(missing: Mapping[str, Missing]) -> str:
    """How an endpoint is that has been ready."""
    given_up = [name for name, why in missing.items() if why.for_good]
    started = [name for name in missing if name not in given_up]
    words = [f"a replica is being started: {', '.join(started)}"] * bool(started)
    words += [f"given up: {', '.join(given_up)}"] * bool(given_up)
    return "; ".join(words) or "ready"


def _listed(plan: ServingPlan) -> Listed:
    return Listed(
        name=plan.endpoint.name,
        max_length=plan.engine.max_length,
        created=int(time.time()),
        adapters={adapter.name: adapter.uri for adapter in plan.adapters},
    )


def _error(failed: Event) -> TpuctlError:
    """What a replica failed with."""
    kind = getattr(errors, failed["error"], JobFailedError)
    error: TpuctlError = kind(f"{failed['model']}: {failed['reason']}", hint=failed["hint"])
    return error
