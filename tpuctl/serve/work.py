"""A request on its way from the engine to the client, whole or in events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tpuctl.serve.asking import Ask
from tpuctl.serve.chat import ChatAnswer
from tpuctl.serve.completions import CompletionAnswer
from tpuctl.serve.generation import Serving, generating
from tpuctl.serve.protocol import ApiError
from tpuctl.serve.wire import DONE, event

_LOG = logging.getLogger("tpuctl.serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What was asked, and how it is answered."""

    ask: Ask
    answer: CompletionAnswer | ChatAnswer
    serving: Serving
    timeout_seconds: float | None

    async def whole(self) -> dict[str, Any]:
        """The whole answer."""
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
            except Exception:  # noqa: BLE001 — the border of a stream, whose status is sent already
                _LOG.exception("a stream failed")
                yield event(ApiError("the server failed", status=HTTPStatus.INTERNAL_SERVER_ERROR).document())
                return
        yield DONE
