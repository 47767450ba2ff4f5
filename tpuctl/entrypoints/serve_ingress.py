"""Where the requests for all replicas arrive: passed on whole, answered as the replica answers.

It sits in the driver, one hop from the replicas, instead of behind Ray Serve's proxy, two hops from them: see
docs/design/serving.md. A request of which nothing has been answered yet is given to another replica if its own is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request

from tpuctl.entrypoints.serve_call import Call, Message, Receive, Send
from tpuctl.errors import HostLostError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.protocol.errors import ApiError, engine_failed, overloaded, timed_out, unavailable
from tpuctl.serve.wire import ClientGoneError, event, read_body

_LOG = logging.getLogger("tpuctl.serve")
_TRY_AGAIN_SECONDS = 0.5


class Ingress:
    """The ASGI app in front of the replicas of one model."""

    def __init__(self, handle: Any, *, limits: HttpOptions, timeout_seconds: float) -> None:
        """``handle`` is Ray Serve's, of a deployment of ``Replica``."""
        self._answer = handle.options(stream=True).answer
        self._limits = limits
        self._timeout_seconds = timeout_seconds
        self.status = "starting"
        self.retries = 0
        self.in_flight = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["path"] in ("/health", "/ready"):
            good = self.status == "ready" or scope["path"] == "/health"
            await _send_json(send, HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, {"status": self.status})
            return
        self.in_flight += 1
        try:
            await self._answered(scope, receive, send)
        finally:
            self.in_flight -= 1

    async def _answered(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            call = _call(scope, await self._body(Request(scope, receive)))
        except ApiError as error:
            await _refuse(send, error)
            return
        except ClientGoneError:
            return
        work, gone = asyncio.create_task(self._pass_on(call, send)), asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    async def _body(self, request: Request) -> bytes:
        if request.method != "POST":
            return b""
        return await read_body(request, max_bytes=self._limits.max_body_bytes, seconds=self._limits.body_seconds)

    async def _pass_on(self, call: Call, send: Send) -> None:
        stream: Any = None
        try:
            stream, first = await self._begun(call)
            await self._send(first, send)
            async for messages in stream:
                await self._send(messages, send)
        except TimeoutError:
            return  # a client that takes nothing of its answer is left
        except ApiError as error:
            await _refuse(send, error)
        except RayError as error:
            _LOG.warning("a replica was lost in the middle of an answer: %s", _first_line(error))
            if not _is_stream(first):
                raise
            fault = unavailable("the replica was lost in the middle of this answer")
            await send({"type": "http.response.body", "body": event(fault.document()), "more_body": False})
        finally:
            if stream is not None:
                stream.cancel()

    async def _send(self, messages: list[Message], send: Send) -> None:
        for message in messages:
            await asyncio.wait_for(send(message), self._limits.send_seconds)

    async def _begun(self, call: Call) -> tuple[Any, list[Message]]:
        """The answer of the first replica that gives one, and its beginning.

        Raises:
            ApiError: None does in time, there is no room, or the request made a replica fail.
        """
        clock, prefix = asyncio.get_running_loop().time, call.prefix()
        end = clock() + self._timeout_seconds
        while True:
            stream = self._answer.remote(call, prefix=prefix)
            try:
                first: list[Message] = await asyncio.wait_for(anext(stream), max(0.0, end - clock()))
                if first[0].get("status") != HTTPStatus.SERVICE_UNAVAILABLE:
                    return stream, first
            except BackPressureError as error:
                raise overloaded(self.in_flight) from error
            except TimeoutError:
                stream.cancel()
                raise timed_out(self._timeout_seconds) from None
            except RayTaskError as error:
                if not isinstance(error.cause, HostLostError):
                    _LOG.exception("a request made a replica fail")
                    raise engine_failed() from error
            except RayError as error:
                _LOG.warning("a replica was lost: %s", _first_line(error))
            # Nothing of an answer has been seen, so another replica may give one.
            self.retries += 1
            if clock() > end:
                raise unavailable("no replica has answered in time")
            await asyncio.sleep(_TRY_AGAIN_SECONDS)


def _call(scope: MutableMapping[str, Any], body: bytes) -> Call:
    return Call(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
        body=body,
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, error: ApiError) -> None:
    await _send_json(send, int(error.status), error.document(), headers=error.headers)


async def _send_json(send: Send, status: int, document: Any, *, headers: Mapping[str, str] | None = None) -> None:
    body = json.dumps(document).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_stream(first: list[Message]) -> bool:
    headers = {bytes(name).lower(): bytes(value) for name, value in first[0].get("headers", [])}
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
