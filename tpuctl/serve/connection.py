"""A connection whose requests must begin properly and soon: uvicorn bounds neither how long headers take nor how long
they are, so that clients that send a byte now and then would hold connections, and memory, for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0
MAX_HEADER_BYTES = 65_536


class BoundedProtocol(HttpToolsProtocol):
    """HTTP on one connection, left where a request's headers are not complete in time or are too long."""

    header_seconds = HEADER_SECONDS

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def on_message_begin(self) -> None:
        """Wait for the rest of a request's headers."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """They have come; from here on the app bounds what is read."""
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        if self._deadline is None:
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._header_bytes = 0
        self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
