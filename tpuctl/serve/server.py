"""The server process: up at once, ready when the model is, gone when it has let its requests end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import uvicorn

from tpuctl.errors import UsageError
from tpuctl.serve.bridge import Bridge, EngineLike
from tpuctl.serve.generation import MakeGrammar, Serving
from tpuctl.serve.http import Front
from tpuctl.serve.metrics import Metrics
from tpuctl.serve.served import Served

_KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model that is ready to be served. ``lost`` gets the reason if what it runs on is lost under it."""

    engine: EngineLike
    served: Served
    make_grammar: MakeGrammar | None = None
    lost: Future[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Where to listen and how much to let in.

    Attributes:
        host: The address to bind.
        port: The port; 0 for any free one.
        max_in_flight: Sequences that run and wait together; more are answered 429.
        timeout_seconds: A whole answer's time at most.
        drain_seconds: How long answers under way may go on once the server is told to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_in_flight: int = 1024
    timeout_seconds: float = 600.0
    drain_seconds: float = 30.0


class Server:
    """One endpoint on one port."""

    def __init__(self, front: Front, options: ServerOptions) -> None:
        """Takes the port at once.

        Raises:
            UsageError: The port or the address can't be had.
        """
        self._front = front
        self._options = options
        self._socket = bound_socket(options)
        self._uvicorn = uvicorn.Server(uvicorn_config(front.app(), options))

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def run(self, load: Callable[[], Loaded], *, on_ready: Callable[[], None]) -> None:
        """Listen, load the model on another thread, serve it until told to stop (SIGTERM, SIGINT or ``stop``).

        A model whose hosts are lost is loaded again; until it is ready, requests are answered 503.

        Raises:
            TpuctlError: Whatever ``load`` raises; nothing listens any more then.
        """
        listening = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        try:
            while not listening.done():
                bridge = begin_serving(self._front, await asyncio.to_thread(load), self._options)
                on_ready()
                await self._until_lost(bridge, listening)
        finally:
            self.stop()
            await listening

    def stop(self) -> None:
        """Take no more connections, let answers under way end, return from ``run``."""
        if self._front.serving is not None:
            self._front.serving.bridge.draining = True
        self._uvicorn.should_exit = True

    async def _until_lost(self, bridge: Bridge, listening: asyncio.Task[None]) -> None:
        """Until nothing listens any more, or there is nothing to serve with."""
        lost = asyncio.create_task(bridge.lost.wait())
        try:
            await asyncio.wait([listening, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if bridge.lost.is_set():
                self._front.serving = None
            await bridge.close()


def begin_serving(front: Front, loaded: Loaded, options: ServerOptions) -> Bridge:
    """Serve a loaded model at ``front`` on the running event loop."""
    bridge = Bridge(loaded.engine, max_in_flight=options.max_in_flight)
    bridge.start()
    if loaded.lost is not None:
        loop = asyncio.get_running_loop()
        loaded.lost.add_done_callback(lambda lost: loop.call_soon_threadsafe(bridge.lose, lost.result()))
    front.serving = Serving(
        served=loaded.served,
        bridge=bridge,
        metrics=Metrics(bridge.stats, model_name=loaded.served.name),
        timeout_seconds=options.timeout_seconds,
        make_grammar=loaded.make_grammar,
    )
    return bridge


def uvicorn_config(app: Any, options: ServerOptions) -> uvicorn.Config:
    """How an ASGI app is served here."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(options.drain_seconds) + 1,
    )


def bound_socket(options: ServerOptions) -> socket.socket:
    """The port, taken at once.

    Raises:
        UsageError: It or the address can't be had.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"can't listen on {options.host}:{options.port}: {error.strerror}",
            hint="choose another serve.port, or 0 for any free one",
        ) from error
    return listener
