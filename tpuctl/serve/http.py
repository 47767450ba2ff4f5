"""The HTTP app: what is answered where."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tpuctl import __version__
from tpuctl.serve.asking import Ask
from tpuctl.serve.border import Border, HttpOptions
from tpuctl.serve.chat import ChatAnswer, ask_chat
from tpuctl.serve.completions import CompletionAnswer, ask_completion
from tpuctl.serve.embedding import Embedding, check_embedding, embedding_document
from tpuctl.serve.generation import Serving
from tpuctl.serve.metrics import CONTENT_TYPE
from tpuctl.serve.openapi import openapi_document
from tpuctl.serve.prompts import input_ids, tokenized
from tpuctl.serve.protocol import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    TokenizeBody,
)
from tpuctl.serve.protocol.errors import no_such_model, unavailable
from tpuctl.serve.wire import EventStream, Json, while_connected
from tpuctl.serve.work import Work

_LOG = logging.getLogger("tpuctl.serve")

TIMEOUT_HEADER = "x-request-timeout-seconds"

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


class Front:
    """The endpoint of one model. ``serving`` is None until the model is ready, and ``phase`` says what is awaited."""

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self.serving: Serving | Embedding | None = None
        self._border = Border(options, count=self._count)
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
            "/version": version,
            "/openapi.json": self._openapi,
        }
        routes = [Route(path, self._border.guarded(handler), methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, self._border.guarded(handler), methods=["GET"]) for path, handler in gets.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in open_gets.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: not_found}, lifespan=lifespan)

    async def _completions(self, request: Request) -> Response:
        body = await self._border.body(request, CompletionBody)
        serving = self._generating(body.model)
        ask = await ask_completion(body, served=serving.served)
        _log(ask, body.user)
        answer = CompletionAnswer(body, ask, served=serving.served)
        work = Work(ask=ask, answer=answer, serving=serving, timeout_seconds=_timeout(request))
        return await self._generated(request, work, stream=bool(body.stream))

    async def _chat(self, request: Request) -> Response:
        body = await self._border.body(request, ChatBody)
        serving = self._generating(body.model)
        ask = await ask_chat(body, served=serving.served, make_grammar=serving.make_grammar)
        _log(ask, body.safety_identifier or body.user)
        answer = ChatAnswer(body, ask, served=serving.served)
        work = Work(ask=ask, answer=answer, serving=serving, timeout_seconds=_timeout(request))
        return await self._generated(request, work, stream=bool(body.stream))

    async def _generated(self, request: Request, work: Work, *, stream: bool) -> Response:
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
        body = await self._border.body(request, EmbeddingBody)
        embedding = self._serving(body.model)
        if not isinstance(embedding, Embedding):
            raise ApiError("the model makes text, no embeddings", param="model", code="unsupported_model")
        check_embedding(body, embedding)
        texts = [await input_ids(embedding.served, text) for text in body.input]
        _LOG.info("embeddings of %d texts, user %r", len(texts), body.user)
        waiting = embedding.vectors(texts, timeout_seconds=_timeout(request))
        return Json(embedding_document(body, texts, await while_connected(request.receive, waiting)))

    async def _tokenize(self, request: Request) -> Response:
        body = await self._border.body(request, TokenizeBody)
        served = self._serving(body.model).served
        ids = await tokenized(served, body)
        spelled = [served.tokenizer.spelled(token).decode(errors="replace") for token in ids]
        strings = {"token_strs": spelled if body.return_token_strs else None}
        return Json({"count": len(ids), "max_model_len": served.max_length, "tokens": list(ids), **strings})

    async def _detokenize(self, request: Request) -> Response:
        body = await self._border.body(request, DetokenizeBody)
        served = self._serving(body.model).served
        unknown = next((token for token in body.tokens if not 0 <= token < served.vocab_size), None)
        if unknown is not None:
            message = f"token id {unknown} does not exist: the model has {served.vocab_size}"
            raise ApiError(message, param="tokens", code="invalid_value")
        return Json({"prompt": served.tokenizer.decode(body.tokens)})

    async def _models(self, _: Request) -> Response:
        serving = self._serving(None)
        return Json({"object": "list", "data": [serving.served.card(name) for name in serving.served.names]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return Json(self._serving(name).served.card(name))

    async def _health(self, _: Request) -> Response:
        failed = self.serving is not None and not self.serving.is_alive
        return Json(
            {"status": "the engine has failed" if failed else "ok"},
            status_code=HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK,
        )

    async def _ready(self, _: Request) -> Response:
        serving = self.serving
        ready = serving is not None and serving.is_alive and not serving.draining
        status = "ready" if ready else self.phase if serving is None else "not taking requests"
        return Json({"status": status}, status_code=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, _: Request) -> Response:
        text = b"" if self.serving is None else self.serving.metrics.text()
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, _: Request) -> Response:
        return Json(openapi_document(() if self.serving is None else self.serving.served.names))

    def _count(self, path: str, status: int) -> None:
        if self.serving is not None:
            self.serving.metrics.answered(path, status=status)

    def _generating(self, model: str) -> Serving:
        serving = self._serving(model)
        if isinstance(serving, Embedding):
            raise ApiError("the model makes embeddings, no text", param="model", code="unsupported_model")
        return serving

    def _serving(self, model: str | None) -> Serving | Embedding:
        if self.serving is None:
            raise unavailable(f"the model is not ready: {self.phase}")
        names = self.serving.served.names
        if model is not None and model not in names:
            raise no_such_model(model, names)
        return self.serving


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


def _log(ask: Ask, user: str | None) -> None:
    _LOG.info("request %s: %d prompts, %d samples, user %r", ask.request_id, len(ask.prompts), len(ask.requests), user)


async def version(_: Request) -> Response:
    """Which tpuctl answers."""
    return Json({"version": __version__})


async def not_found(request: Request, error: Exception) -> Response:
    """The answer where nothing is, or nothing by that method."""
    assert isinstance(error, HTTPException), "registered for it"
    status = HTTPStatus(error.status_code)
    fault = ApiError(f"{request.method} {request.url.path}: {status.phrase.lower()}", status=status, code="not_found")
    return Json(fault.document(), status_code=status, headers=error.headers)
