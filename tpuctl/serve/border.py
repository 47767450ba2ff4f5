"""Who may ask how much, and every error as an answer: what is around each handler."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tpuctl.serve.keys import Keys
from tpuctl.serve.limits import KeyLimits, Limiter
from tpuctl.serve.protocol import ApiError, Body, parse_body
from tpuctl.serve.wire import ClientGoneError, Json, read_body

_LOG = logging.getLogger("tpuctl.serve")

_CLIENT_GONE = 499

Handler = Callable[[Request], Awaitable[Response]]
Count = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpOptions:
    """Limits of the endpoint. Without ``keys`` it is open to whoever reaches it."""

    keys: Keys | None = None
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    max_body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    send_seconds: float = 60.0


class Border:
    """The endpoint's border. ``count`` is told the path and the status of every answer."""

    def __init__(self, options: HttpOptions, *, count: Count) -> None:
        self._options = options
        self._limiter = Limiter(options.key_limits)
        self._count = count

    def guarded(self, handler: Handler) -> Handler:
        """The handler behind the keys and their limits, whose every error is answered."""

        async def guarded(request: Request) -> Response:
            release: Callable[[], None] = _nothing
            try:
                release = self._limiter.admit(self.key(request))
                response = await _answered(handler, request)
            except ApiError as error:
                response = _refusal(error)
            except BaseException:
                release()
                raise
            self._count(request.scope["route"].path, response.status_code)
            return _Held(response, release)

        return guarded

    async def body[B: Body](self, request: Request, kind: type[B]) -> B:
        """The checked body of a request.

        Raises:
            ApiError: It is no such body, too large, or too slow.
            ClientGoneError: The client has gone.
        """
        options = self._options
        data = await read_body(request, max_bytes=options.max_body_bytes, seconds=options.body_seconds)
        return parse_body(kind, data)

    def key(self, request: Request) -> bytes | None:
        """What stands for the key that the request came with; None where none is needed.

        Raises:
            ApiError: It has none, or none that is known.
        """
        keys = self._options.keys
        if keys is None:
            return None
        key = keys.matching(request.headers.get("authorization", ""))
        if key is None:
            raise ApiError(
                "no valid API key: send one as `Authorization: Bearer KEY`",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return key


class _Held(Response):
    """A response that holds a place among its key's requests until it is sent, or can't be."""

    def __init__(self, response: ASGIApp, release: Callable[[], None]) -> None:
        self._response = response
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await self._response(scope, receive, send)
        finally:
            self._release()


async def _answered(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(error)
    except ClientGoneError:
        return Response(status_code=_CLIENT_GONE)
    except Exception:  # noqa: BLE001 — the border: the client learns that it was not its fault, the log why
        _LOG.exception("a request failed: %s", request.url.path)
        return _refusal(ApiError("the server failed on this request", status=HTTPStatus.INTERNAL_SERVER_ERROR))


def _refusal(error: ApiError) -> Response:
    return Json(error.document(), status_code=error.status, headers=error.headers)


def _nothing() -> None:
    pass
