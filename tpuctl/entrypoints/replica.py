"""A replica of a served model as Ray Serve keeps it: a process without chips that owns a slice and answers HTTP calls.

It reserves its slice itself, with a deadline, since Ray Serve can't pick one slice and keep to it. Once a host is lost
it is unhealthy: Ray Serve ends it, which frees the slice, and starts another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayActorError

from tpuctl.entrypoints.serve_board import ReplicaFigures
from tpuctl.entrypoints.serve_call import Call, Message, answered
from tpuctl.entrypoints.serve_host import http_options, server_options
from tpuctl.errors import HostLostError, TpuctlError
from tpuctl.plan.schema import ServingPlan, plan_from_json
from tpuctl.runs.events import event
from tpuctl.serve.embedding import Embedding
from tpuctl.serve.generation import Serving
from tpuctl.serve.http import Front
from tpuctl.serve.server import begin_serving


class Replica:
    """One model on one slice."""

    async def __init__(self, plan_document: dict[str, Any], board: Any) -> None:  # type: ignore[misc]
        plan = plan_from_json(plan_document)
        assert isinstance(plan, ServingPlan), "the serve entrypoint sends one"
        os.environ.update(plan.job.env | plan.job.secrets)
        os.environ["JAX_PLATFORMS"] = "cpu"  # the chips are for the hosts' processes
        # Not at the top: it imports jax, for which the line above comes too late then.
        from tpuctl.entrypoints.serve_gang import GangModel

        plan = replace(plan, slice=replace(plan.slice, slices=1), job=replace(plan.job, max_failures=0))
        self._board = board
        self._name = serve.get_replica_context().replica_id.unique_id
        self._front = Front(http_options(plan.endpoint))
        self._app = self._front.app()

        def tell(phase: str, **fields: Any) -> None:
            board.put.remote(event("phase", phase=phase, replica=self._name, model=plan.endpoint.name, **fields))

        self._model = GangModel(plan, tell=tell)  # kept, since the slice is held as long as it is
        try:
            loaded = await asyncio.to_thread(self._model.load)
        except TpuctlError as error:
            self._model.close()
            failed = {"reason": error.message, "hint": error.hint, "error": type(error).__name__}
            board.put.remote(event("failed", model=plan.endpoint.name, **failed))
            raise
        self._bridge = begin_serving(self._front, loaded, server_options(plan))
        tell("replica ready", pid=os.getpid())

    async def answer(self, call: Call, *, prefix: str) -> AsyncIterator[list[Message]]:
        """Answer a request; ``prefix`` has brought it here."""
        if not self._bridge.is_alive:
            raise HostLostError("this replica has lost its slice")
        async for messages in answered(self._app, call):
            yield messages

    async def check_health(self) -> None:
        """Whether it can go on, and has reason to: without the driver, which is gone, nobody would ever end it.

        Raises:
            HostLostError: It can't.
        """
        if not self._bridge.is_alive:
            raise HostLostError("this replica has lost its slice")
        serving = self._front.serving
        try:
            await self._board.put_figures.remote(self._name, None if serving is None else _figures(serving))
        except RayActorError:
            serve.delete(serve.get_replica_context().app_name, _blocking=False)


def _figures(serving: Serving | Embedding) -> ReplicaFigures:
    return ReplicaFigures(model=serving.served.name, figures=serving.figures(), metrics=serving.metrics.text())
