"""The HTTP app: routes, keys, limits, and every error in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tpuctl import __version__
from tpuctl.serve.asking import Ask
from tpuctl.serve.chat import ChatAnswer, ask_chat
from tpuctl.serve.completions import CompletionAnswer, ask_completion
from tpuctl.serve.generation import Serving, generating
from tpuctl.serve.keys import Keys
from tpuctl.serve.metrics import CONTENT_TYPE
from tpuctl.serve.openapi import openapi_document
from tpuctl.serve.prompts import tokenized
from tpuctl.serve.protocol import (
    ApiError,
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    parse_body,
)
from tpuctl.serve.protocol.errors import unavailable
from tpuctl.serve.wire import DONE, ClientGoneError, EventStream, Json, event, read_body, while_connected

_LOG = logging.getLogger("tpuctl.serve")

TIMEOUT_HEADER = "x-request-timeout-seconds"
_CLIENT_GONE = 499

Handler = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpOptions:
    """Limits of the endpoint. Without ``keys`` it is open to whoever reaches it."""

    keys: Keys | None = None
    max_body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    send_seconds: float = 60.0


class Front:
    """The endpoint of one model. ``serving`` is None until the model is ready, and ``phase`` says what is awaited."""

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self.serving: Serving | None = None
        self.phase = "starting"

    def app(self, lifespan: Lifespan | None = None) -> Starlette:
        """The ASGI app."""
        posts = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/v1/embeddings": self._embeddings,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        gets = {"/v1/models": self._models, "/v1/models/{name:path}": self._model}
        open_gets = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/version": _version,
            "/openapi.json": _openapi,
        }
        routes = [Route(path, self._guarded(handler), methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, self._guarded(handler), methods=["GET"]) for path, handler in gets.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in open_gets.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_found}, lifespan=lifespan)

    def _guarded(self, handler: Handler) -> Handler:
        """The handler behind the keys, whose every error is answered."""

        async def guarded(request: Request) -> Response:
            response = await self._answered(handler, request)
            if self.serving is not None:
                self.serving.metrics.answered(request.scope["route"].path, status=response.status_code)
            return response

        return guarded

    async def _answered(self, handler: Handler, request: Request) -> Response:
        try:
            self._check_key(request)
            return await handler(request)
        except ApiError as error:
            return Json(error.document(), status_code=error.status, headers=error.headers)
        except ClientGoneError:
            return Response(status_code=_CLIENT_GONE)
        except Exception:  # noqa: BLE001 — the border: the client learns that it was not its fault, the log why
            _LOG.exception("a request failed: %s", request.url.path)
            fault = ApiError("the server failed on this request", status=HTTPStatus.INTERNAL_SERVER_ERROR)
            return Json(fault.document(), status_code=fault.status)

    def _check_key(self, request: Request) -> None:
        keys = self.options.keys
        if keys is not None and not keys.open_to(request.headers.get("authorization", "")):
            raise ApiError(
                "no valid API key: send one as `Authorization: Bearer KEY`",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _completions(self, request: Request) -> Response:
        body = await self._body(request, CompletionBody)
        serving = self._serving(body.model)
        ask = await ask_completion(body, served=serving.served)
        _log(ask, body.user)
        return await self._generated(
            request, ask, CompletionAnswer(body, ask, served=serving.served), bool(body.stream)
        )

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request, ChatBody)
        serving = self._serving(body.model)
        ask = await ask_chat(body, served=serving.served, make_grammar=serving.make_grammar)
        _log(ask, body.safety_identifier or body.user)
        return await self._generated(request, ask, ChatAnswer(body, ask, served=serving.served), bool(body.stream))

    async def _generated(
        self,
        request: Request,
        ask: Ask,
        answer: CompletionAnswer | ChatAnswer,
        stream: bool,
    ) -> Response:
        work = _Work(ask=ask, answer=answer, serving=self._serving(None), timeout_seconds=_timeout(request))
        if not stream:
            return Json(await while_connected(request.receive, work.whole()))
        events = work.events()
        try:
            first = await while_connected(request.receive, anext(events))
        except BaseException:
            await events.aclose()
            raise
        return EventStream(events, first=first, send_seconds=self.options.send_seconds)

    async def _embeddings(self, request: Request) -> Response:
        await read_body(request, max_bytes=self.options.max_body_bytes, seconds=self.options.body_seconds)
        raise ApiError("the model makes text, no embeddings", param="model", code="unsupported_model")

    async def _tokenize(self, request: Request) -> Response:
        body = await self._body(request, TokenizeBody)
        served = self._serving(body.model).served
        ids = await tokenized(served, body)
        spelled = [served.tokenizer.spelled(token).decode(errors="replace") for token in ids]
        strings = {"token_strs": spelled if body.return_token_strs else None}
        return Json({"count": len(ids), "max_model_len": served.max_length, "tokens": list(ids), **strings})

    async def _detokenize(self, request: Request) -> Response:
        body = await self._body(request, DetokenizeBody)
        served = self._serving(body.model).served
        unknown = next((token for token in body.tokens if not 0 <= token < served.vocab_size), None)
        if unknown is not None:
            message = f"token id {unknown} does not exist: the model has {served.vocab_size}"
            raise ApiError(message, param="tokens", code="invalid_value")
        return Json({"prompt": served.tokenizer.decode(body.tokens)})

    async def _models(self, _: Request) -> Response:
        serving = self._serving(None)
        return Json({"object": "list", "data": [_card(serving, name) for name in serving.served.names]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return Json(_card(self._serving(name), name))

    async def _health(self, _: Request) -> Response:
        failed = self.serving is not None and not self.serving.bridge.is_alive
        return Json(
            {"status": "the engine has failed" if failed else "ok"},
            status_code=HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK,
        )

    async def _ready(self, _: Request) -> Response:
        serving = self.serving
        ready = serving is not None and serving.bridge.is_alive and not serving.bridge.draining
        status = "ready" if ready else self.phase if serving is None else "not taking requests"
        return Json({"status": status}, status_code=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, _: Request) -> Response:
        text = b"" if self.serving is None else self.serving.metrics.text()
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def _body[B: Body](self, request: Request, kind: type[B]) -> B:
        options = self.options
        return parse_body(
            kind, await read_body(request, max_bytes=options.max_body_bytes, seconds=options.body_seconds)
        )

    def _serving(self, model: str | None) -> Serving:
        if self.serving is None:
            raise unavailable(f"the model is not ready: {self.phase}")
        names = self.serving.served.names
        if model is not None and model not in names:
            raise ApiError(
                f"there is no model {model!r} here, but {', '.join(names)}",
                status=HTTPStatus.NOT_FOUND,
                param="model",
                code="model_not_found",
            )
        return self.serving


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """A request on its way to an answer."""

    ask: Ask
    answer: CompletionAnswer | ChatAnswer
    serving: Serving
    timeout_seconds: float | None

    async def whole(self) -> dict[str, Any]:
        async with generating(self.ask, serving=self.serving, timeout_seconds=self.timeout_seconds) as generation:
            return await self.answer.whole(generation)

    async def events(self) -> AsyncGenerator[bytes]:
        """An empty first one once the request is let in, since until then it can be answered by a status."""
        async with generating(self.ask, serving=self.serving, timeout_seconds=self.timeout_seconds) as generation:
            yield b""
            try:
                async for chunk in self.answer.chunks(generation):
                    yield event(chunk)
            except ApiError as error:
                yield event(error.document())
                return
            except Exception:  # noqa: BLE001 — the border: as _answered, but the status is sent already
                _LOG.exception("a stream failed")
                yield event(ApiError("the server failed", status=HTTPStatus.INTERNAL_SERVER_ERROR).document())
                return
        yield DONE


def _timeout(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ApiError(f"{TIMEOUT_HEADER} must be a number of seconds, got {text!r}", param=TIMEOUT_HEADER)
    return seconds


def _card(serving: Serving, name: str) -> dict[str, Any]:
    served = serving.served
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "tpuctl",
        "root": served.name,
        "max_model_len": served.max_length,
    }


def _log(ask: Ask, user: str | None) -> None:
    _LOG.info("request %s: %d prompts, %d samples, user %r", ask.request_id, len(ask.prompts), len(ask.requests), user)


async def _version(_: Request) -> Response:
    return Json({"version": __version__})


async def _openapi(_: Request) -> Response:
    return Json(openapi_document())


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    status = HTTPStatus(error.status_code)
    fault = ApiError(f"{request.method} {request.url.path}: {status.phrase.lower()}", status=status, code="not_found")
    return Json(fault.document(), status_code=status, headers=error.headers)
