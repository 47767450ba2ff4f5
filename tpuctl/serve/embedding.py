"""Texts to vectors: what requests wait for, batch by batch, and what ``/v1/embeddings`` answers."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32

from tpuctl.serve.metrics import Metrics
from tpuctl.serve.protocol import ApiError, EmbeddingBody
from tpuctl.serve.protocol.errors import engine_failed, overloaded, timed_out, unavailable
from tpuctl.serve.served import Served

_LOG = logging.getLogger("tpuctl.serve")
_MAX_FAILURES_IN_A_ROW = 3

Ids = tuple[int, ...]
Vectors = Float32[np.ndarray, "texts size"]


class EmbedderLike(Protocol):
    """What serving needs of an encoder."""

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def batch_rows(self) -> int:
        """Texts that are computed at once."""
        ...

    def vectors(self, texts: Sequence[Ids]) -> Vectors:
        """The vector of each text, which does not depend on the others. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    texts: Sequence[Ids]
    result: asyncio.Future[Vectors]


class Embedding:
    """An encoder that is served: requests that come while it computes share the next batch."""

    def __init__(self, embedder: EmbedderLike, *, served: Served, max_waiting: int, timeout_seconds: float) -> None:
        """``max_waiting`` is how many texts may wait; more are answered 429."""
        self.served = served
        self.metrics = Metrics(None, model_name=served.name)
        self.size = embedder.size
        self.draining = False
        self._embedder = embedder
        self._max_waiting = max_waiting
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[_Waiting] = deque()
        self._running = self._failures = self._tokens = 0
        self._more = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether it can be expected to go on."""
        return self._failures < _MAX_FAILURES_IN_A_ROW

    def start(self) -> None:
        """Begin to serve on the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Fail what waits and end."""
        self.draining = True
        self._task.cancel()
        for waiting in self._waiting:
            _fail(waiting, unavailable("the server is shutting down"))

    def drain(self) -> None:
        """Let nothing in any more."""
        self.draining = True

    def figures(self) -> dict[str, Any]:
        """How it goes; an encoder has no pages, and its tokens are those of the texts."""
        waiting = sum(len(item.texts) for item in self._waiting)
        return {
            "running": self._running,
            "waiting": waiting,
            "output_tokens": self._tokens,
            "page_use": None,
            "first_token_seconds": None,
        }

    async def vectors(self, texts: Sequence[Ids], *, timeout_seconds: float | None = None) -> Vectors:
        """The vectors of texts.

        Raises:
            ApiError: There is no room, its time was over, or the encoder failed.
        """
        self._check_room(len(texts))
        seconds = min(self._timeout_seconds, timeout_seconds or self._timeout_seconds)
        waiting = _Waiting(texts, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._more.set()
        try:
            async with asyncio.timeout(seconds):
                return await waiting.result
        except TimeoutError:
            raise timed_out(seconds) from None

    def _check_room(self, count: int) -> None:
        if self.draining or not self.is_alive:
            raise unavailable("the server is shutting down" if self.draining else "the encoder has failed")
        waiting = sum(len(item.texts) for item in self._waiting)
        # One request of many texts is let in where nothing waits: it could never be otherwise.
        if waiting and waiting + count > self._max_waiting:
            raise overloaded(waiting)

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while batch := self._next_batch():
                await self._compute(batch)

    def _next_batch(self) -> list[_Waiting]:
        """The requests at the head, as many as fill a batch; those that nobody waits for any more are dropped."""
        batch: list[_Waiting] = []
        while self._waiting and sum(len(item.texts) for item in batch) < self._embedder.batch_rows:
            item = self._waiting.popleft()
            if not item.result.done():
                batch.append(item)
        return batch

    async def _compute(self, batch: list[_Waiting]) -> None:
        texts = [text for item in batch for text in item.texts]
        self._running = len(texts)
        try:
            vectors = await asyncio.to_thread(self._embedder.vectors, texts)
        except Exception:  # noqa: BLE001 — the serving loop: fail those who wait, live on
            _LOG.exception("a batch of the encoder failed")
            self._failures += 1
            for item in batch:
                _fail(item, engine_failed())
            return
        finally:
            self._running = 0
        self._failures = 0
        self._tokens += sum(map(len, texts))
        at = 0
        for item in batch:
            if not item.result.done():
                item.result.set_result(vectors[at : at + len(item.texts)])
            at += len(item.texts)


def check_embedding(body: EmbeddingBody, embedding: Embedding) -> None:
    """Refuse what the model's vectors can't be.

    Raises:
        ApiError: Another number of dimensions.
    """
    if body.dimensions not in (None, embedding.size):
        message = f"the model's vectors have {embedding.size} dimensions and can't be cut short"
        raise ApiError(message, param="dimensions", code="unsupported_value")


def embedding_document(body: EmbeddingBody, texts: Sequence[Ids], vectors: Vectors) -> dict[str, Any]:
    """The answer."""
    encode = _base64 if body.encoding_format == "base64" else _numbers
    tokens = sum(map(len, texts))
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ],
        "model": body.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _numbers(vector: Float32[np.ndarray, " size"]) -> list[float]:
    return [float(value) for value in vector]


def _base64(vector: Float32[np.ndarray, " size"]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _fail(waiting: _Waiting, error: ApiError) -> None:
    if not waiting.result.done():
        waiting.result.set_exception(error)
