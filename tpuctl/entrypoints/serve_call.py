"""One HTTP request on its way from the driver, where it arrives, to a replica, where the whole app answers it.

What crosses are ASGI's own messages: the request whole, the answer's as they come. No Ray here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# So many characters of a prompt's beginning decide where it goes: a page or two, and no more than most prompts have.
PREFIX_CHARACTERS = 256
# A client that reads slowly holds up its own answer, not the replica's memory.
_MESSAGES_AHEAD = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Asks:
    """The model that a request names, and what it has in common with those that begin alike: empty without a prompt."""

    model: str | None = None
    prefix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request with its body."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def scope(self) -> dict[str, Any]:
        """As ASGI has it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }

    def asks(self) -> Asks:
        """What its body says of where it should go. Nothing where it is no good body, which the app will say."""
        try:
            body = json.loads(self.body)
            model, beginning = body.get("model"), body.get("messages", body.get("prompt"))
        except (ValueError, AttributeError):
            return Asks()
        named = model if isinstance(model, str) else None
        if not beginning:
            return Asks(model=named)
        text = beginning if isinstance(beginning, str) else json.dumps(beginning)
        digest = blake2b(f"{named or ''}/{text[:PREFIX_CHARACTERS]}".encode(), digest_size=8)
        return Asks(model=named, prefix=digest.hexdigest())


async def answered(app: App, call: Call) -> AsyncIterator[list[Message]]:
    """What the app answers, as it comes; several messages at once if they have piled up.

    Leaving the iteration is the client's going away.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue(_MESSAGES_AHEAD)
    gone = asyncio.Event()
    work = asyncio.create_task(_run(app, call, messages, gone))
    try:
        while (first := await messages.get()) is not None:
            batch = [first]
            while not messages.empty():
                further = messages.get_nowait()
                if further is None:
                    yield batch
                    return
                batch.append(further)
            yield batch
    finally:
        gone.set()
        if not work.done():
            work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def _run(app: App, call: Call, messages: asyncio.Queue[Message | None], gone: asyncio.Event) -> None:
    body: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    try:
        await app(call.scope(), receive, messages.put)
    finally:
        if not gone.is_set():
            await messages.put(None)
