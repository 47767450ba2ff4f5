"""Bytes in and out: a bounded body, JSON, server-sent events; and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tpuctl.serve.protocol.errors import ApiError

DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for an answer."""


class Json(Response):
    """A JSON document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact, in UTF-8."""
        return dumps(content)


class EventStream(Response):
    """Server-sent events while the client is there and reads.

    The generator is closed however the stream ends, which is what frees what it holds.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], *, first: bytes, send_seconds: float) -> None:
        """``first`` was made already; a client that takes nothing for ``send_seconds`` is left."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._first = first
        self._send_seconds = send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            with suppress(ClientGoneError, TimeoutError, OSError):
                await while_connected(receive, self._send_all(send))
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send(send, self._first)
        async for event in self._events:
            await self._send(send, event)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        if data:
            async with asyncio.timeout(self._send_seconds):
                await send({"type": "http.response.body", "body": data, "more_body": True})


def dumps(document: Any) -> bytes:
    """JSON as it goes over the wire."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(document) + b"\n\n"


async def while_connected[T](receive: Receive, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled as soon as the client goes.

    Raises:
        ClientGoneError: It went first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def read_body(request: Request, *, max_bytes: int, seconds: float) -> bytes:
    """The body of a request.

    Raises:
        ApiError: It is not said to be JSON, is larger than allowed, or takes too long to come.
        ClientGoneError: The client has gone.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"the body must have the content type application/json, got {kind or 'none'}"
        raise ApiError(message, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="unsupported_media_type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"the body must come as it is, not in the encoding {encoding}"
        raise ApiError(message, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="unsupported_media_type")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(seconds):
            return await _read(request.receive, max_bytes=max_bytes)
    except TimeoutError:
        message = f"the body was not complete after {seconds:g} s"
        raise ApiError(message, status=HTTPStatus.REQUEST_TIMEOUT, code="request_timeout") from None


async def _read(receive: Receive, *, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        f"the body is larger than {max_bytes} bytes",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="body_too_large",
        # What is still coming would be taken for the next request.
        headers={"Connection": "close"},
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
