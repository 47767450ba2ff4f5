"""The server process: up at once, ready when the model is, gone when it has let its requests end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import uvicorn

from tpuctl.errors import UsageError
from tpuctl.serve.bridge import Bridge, EngineLike
from tpuctl.serve.connection import BoundedProtocol
from tpuctl.serve.embedding import EmbedderLike, Embedding
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
class LoadedEncoder:
    """An encoder that is ready to be served."""

    embedder: EmbedderLike
    served: Served


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """PEM files: the certificate, with those that vouch for it, and its key, which has no password."""

    cert: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Where to listen and how much to let in.

    Attributes:
        host: The address to bind.
        port: The port; 0 for any free one.
        max_in_flight: Sequences that run and wait together; more are answered 429.
        timeout_seconds: A whole answer's time at most.
        drain_seconds: How long answers under way may go on once the server is told to stop.
        tls: With what HTTPS is spoken; None for plain HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_in_flight: int = 1024
    timeout_seconds: float = 600.0
    drain_seconds: float = 30.0
    tls: Tls | None = None


class Server:
    """One endpoint on one port."""

    def __init__(self, front: Front, options: ServerOptions) -> None:
        """Takes the port at once.

        Raises:
            UsageError: The port or the address can't be had, or the certificate can't be used.
        """
        self._front = front
        self._options = options
        self._socket = bound_socket(options)
        self._uvicorn = uvicorn.Server(uvicorn_config(front.app(), options))

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def run(self, load: Callable[[], Loaded | LoadedEncoder], *, on_ready: Callable[[], None]) -> None:
        """Listen, load the model on another thread, serve it until told to stop (SIGTERM, SIGINT or ``stop``).

        A model whose hosts are lost is loaded again; until it is ready, requests are answered 503.

        Raises:
            TpuctlError: Whatever ``load`` raises; nothing listens any more then.
        """
        listening = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        try:
            while not listening.done():
                loaded = await asyncio.to_thread(load)
                served = self._begin(loaded)
                on_ready()
                await self._until_lost(served, listening)
        finally:
            self.stop()
            await listening

    def stop(self) -> None:
        """Take no more connections, let answers under way end, return from ``run``."""
        if self._front.serving is not None:
            self._front.serving.drain()
        self._uvicorn.should_exit = True

    def _embed(self, loaded: LoadedEncoder) -> Embedding:
        embedding = Embedding(
            loaded.embedder,
            served=loaded.served,
            max_waiting=self._options.max_in_flight,
            timeout_seconds=self._options.timeout_seconds,
        )
        embedding.start()
        self._front.serving = embedding
        return embedding

    def _begin(self, loaded: Loaded | LoadedEncoder) -> Bridge | Embedding:
        if isinstance(loaded, LoadedEncoder):
            return self._embed(loaded)
        return begin_serving(self._front, loaded, self._options)

    async def _until_lost(self, served: Bridge | Embedding, listening: asyncio.Task[None]) -> None:
        """Until nothing listens any more, or there is nothing to serve with."""
        lost = served.lost if isinstance(served, Bridge) else asyncio.Event()
        waiting = asyncio.create_task(lost.wait())
        try:
            await asyncio.wait([listening, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            if lost.is_set():
                self._front.serving = None
            await served.close()


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
    """How an ASGI app is served here.

    Raises:
        UsageError: The certificate can't be used.
    """
    _check_tls(options.tls)
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        ssl_certfile=None if options.tls is None else options.tls.cert,
        ssl_keyfile=None if options.tls is None else options.tls.key,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(options.drain_seconds) + 1,
    )


def _check_tls(tls: Tls | None) -> None:
    if tls is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        raise UsageError(
            f"no HTTPS with {tls.cert} and {tls.key}: {error.strerror or error}",
            hint="serve.tls_cert and serve.tls_key are PEM files on the host: a certificate and its own key, unlocked",
        ) from error


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
