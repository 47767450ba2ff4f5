"""Where the requests for all models and replicas arrive: each is passed on to the replicas of the model it names.

It sits in the driver, one hop from the replicas, instead of behind Ray Serve's proxy, two hops from them: see
docs/design/serving.md. What concerns all of them (the list of models, readiness, metrics) is answered here, and so is
a request that names no model of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tpuctl.entrypoints.serve_call import Asks, Call, Receive, Send
from tpuctl.entrypoints.serve_passing import Replicas
from tpuctl.serve.border import Border, HttpOptions
from tpuctl.serve.http import not_found, version
from tpuctl.serve.metrics import CONTENT_TYPE
from tpuctl.serve.openapi import POSTS, openapi_document
from tpuctl.serve.protocol import ApiError, parse_body
from tpuctl.serve.protocol.errors import no_such_model, unavailable
from tpuctl.serve.served import Listed
from tpuctl.serve.wire import ClientGoneError, Json, read_body


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A model behind the ingress."""

    listed: Listed
    replicas: Replicas


class Ingress:
    """The front of all models. ``status`` is ``ready`` once each of them is; nobody starts replicas of those that are
    ``given_up``."""

    def __init__(
        self, models: Sequence[Behind], *, limits: HttpOptions, read_metrics: Callable[[], Awaitable[bytes]]
    ) -> None:
        self.models = models
        self._limits = limits
        self._read_metrics = read_metrics
        self._border = Border(limits, count=lambda path, status: None)
        self._of_name: Mapping[str, Behind] = {name: model for model in models for name in model.listed.names}
        self.status = "starting"
        self.given_up: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may give as its model."""
        return tuple(self._of_name)

    def app(self) -> Starlette:
        """The ASGI app."""
        guarded = {"/v1/models": self._list, "/v1/models/{name:path}": self._card}
        open_gets = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/version": version,
            "/openapi.json": self._openapi,
        }
        routes = [Route(path, _Passage(self, path), methods=["POST"]) for path in POSTS]
        routes += [Route(path, self._border.guarded(handler), methods=["GET"]) for path, handler in guarded.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in open_gets.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: not_found})

    async def pass_on(self, request: Request, send: Send, *, path: str) -> None:
        """Answer a request with a body; until its client goes."""
        try:
            body = await read_body(request, max_bytes=self._limits.max_body_bytes, seconds=self._limits.body_seconds)
            call = _call(request.scope, body)
            asks = call.asks()
            model = self._asked(request, path, call, asks)
            if model.listed.name in self.given_up:
                raise unavailable(f"{model.listed.name} has failed too often and is not started again")
            await _unless_gone(request.receive, model.replicas.answer(call, send, prefix=asks.prefix))
        except ApiError as error:
            await Json(error.document(), status_code=error.status, headers=error.headers)(
                request.scope, request.receive, send
            )
        except ClientGoneError:
            return

    def _asked(self, request: Request, path: str, call: Call, asks: Asks) -> Behind:
        """The model that a request is for. Of a single one the replicas say themselves what is wrong with a request.

        Raises:
            ApiError: It names none of several, or its body is none.
        """
        model = self._of_name.get(asks.model or "")
        if model is not None or len(self.models) == 1:
            return model or self.models[0]
        self._border.key(request)  # who has none learns no names
        kind, _ = POSTS[path]
        named: str | None = parse_body(kind, call.body).model  # type: ignore[attr-defined]
        if named is not None:
            raise no_such_model(named, self.names)
        message = f"model: missing, and there are several: {', '.join(self.names)}"
        raise ApiError(message, param="model", code="missing_required_parameter")

    async def _list(self, _: Request) -> Response:
        self._require_begun()
        cards = [model.listed.card(name) for name, model in self._of_name.items()]
        return Json({"object": "list", "data": cards})

    async def _card(self, request: Request) -> Response:
        self._require_begun()
        name = request.path_params["name"]
        if name not in self._of_name:
            raise no_such_model(name, self.names)
        return Json(self._of_name[name].listed.card(name))

    async def _health(self, _: Request) -> Response:
        return Json({"status": self.status})

    async def _ready(self, _: Request) -> Response:
        good = self.status == "ready"
        return Json({"status": self.status}, status_code=HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, _: Request) -> Response:
        return Response(await self._read_metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, _: Request) -> Response:
        return Json(openapi_document(self.names))

    def _require_begun(self) -> None:
        if self.status == "starting":
            raise unavailable("no model is ready: starting")


class _Passage:
    """One path, as ASGI has it."""

    def __init__(self, ingress: Ingress, path: str) -> None:
        self._ingress = ingress
        self._path = path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._ingress.pass_on(Request(scope, receive), send, path=self._path)


def _call(scope: MutableMapping[str, Any], body: bytes) -> Call:
    return Call(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
        body=body,
    )


async def _unless_gone(receive: Receive, answer: Awaitable[None]) -> None:
    """See the answer through, or end it when the client goes."""
    work, gone = asyncio.ensure_future(answer), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
