"""A request passed on to the replicas of a model: whole, and answered as the replica answers.

A request of which nothing has been answered yet is given to another replica if its own is lost.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError

from tpuctl.entrypoints.serve_call import Call, Message, Send
from tpuctl.errors import HostLostError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.protocol.errors import engine_failed, overloaded, timed_out, unavailable
from tpuctl.serve.wire import event

_LOG = logging.getLogger("tpuctl.serve")
_TRY_AGAIN_SECONDS = 0.5


class Replicas:
    """The replicas of one model, as they are reached from the driver."""

    def __init__(self, handle: Any, *, limits: HttpOptions, timeout_seconds: float) -> None:
        """``handle`` is Ray Serve's, of a deployment of ``Replica``."""
        self._answer = handle.options(stream=True).answer
        self._limits = limits
        self._timeout_seconds = timeout_seconds
        self.retries = 0
        self.in_flight = 0

    async def answer(self, call: Call, send: Send, *, prefix: str) -> None:
        """Have one of them answer; one that has answered a call with this prefix before if it can.

        Raises:
            ApiError: None does in time, there is no room, or the request made a replica fail.
        """
        self.in_flight += 1
        try:
            await self._pass_on(call, send, prefix)
        finally:
            self.in_flight -= 1

    async def _pass_on(self, call: Call, send: Send, prefix: str) -> None:
        stream: Any = None
        try:
            stream, first = await self._begun(call, prefix)
            await self._send(first, send)
            async for messages in stream:
                await self._send(messages, send)
        except TimeoutError:
            return  # a client that takes nothing of its answer is left
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

    async def _begun(self, call: Call, prefix: str) -> tuple[Any, list[Message]]:
        """The answer of the first replica that gives one, and its beginning; raises as ``answer`` does."""
        clock = asyncio.get_running_loop().time
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


def _is_stream(first: list[Message]) -> bool:
    headers = {bytes(name).lower(): bytes(value) for name, value in first[0].get("headers", [])}
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
