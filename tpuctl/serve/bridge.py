"""Between asyncio and the engine: the engine runs on a thread of its own, which alone touches it.

A group of requests goes in together or not at all. However a group is left (done, cancelled, the client gone, its time
over), what is unfinished of it is aborted before the engine's next step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from tpuctl.engine.request import Output, Request, RequestError
from tpuctl.errors import HostLostError
from tpuctl.serve.protocol.errors import ApiError, engine_failed, of_engine, overloaded, unavailable

_LOG = logging.getLogger("tpuctl.serve")

MAX_FAILURES_IN_A_ROW = 3


class StatsLike(Protocol):
    """The engine's figures that are shown; see ``engine.stats.EngineStats``."""

    @property
    def running(self) -> int: ...  # noqa: D102
    @property
    def waiting(self) -> int: ...  # noqa: D102
    @property
    def num_pages(self) -> int: ...  # noqa: D102
    @property
    def free_pages(self) -> int: ...  # noqa: D102
    @property
    def cached_pages(self) -> int: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def cached_tokens(self) -> int: ...  # noqa: D102
    @property
    def output_tokens(self) -> int: ...  # noqa: D102
    @property
    def draft_tokens(self) -> int: ...  # noqa: D102
    @property
    def accepted_tokens(self) -> int: ...  # noqa: D102
    @property
    def preemptions(self) -> int: ...  # noqa: D102


class EngineLike(Protocol):
    """What serving needs of an engine."""

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise ``RequestError``."""
        ...

    def abort(self, request_id: str) -> bool:
        """End a request."""
        ...

    def step(self) -> list[Output]:
        """One step; what the one before it made."""
        ...

    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        ...

    def stats(self) -> StatsLike:
        """Figures of this moment."""
        ...


class Group:
    """Requests that were let in together, and what comes of them. Lives on the event loop."""

    def __init__(self, requests: Sequence[Request], *, abort: Callable[[str], None]) -> None:
        self.requests = tuple(requests)
        self.unfinished = {request.request_id for request in requests}
        self._abort = abort
        self._outputs: asyncio.Queue[Output | ApiError] = asyncio.Queue()

    def put(self, item: Output | ApiError) -> None:
        """Hand in what the engine said."""
        self._outputs.put_nowait(item)

    def abort(self, request_id: str) -> None:
        """Go on without one of the requests."""
        if request_id in self.unfinished:
            self.unfinished.discard(request_id)
            self._abort(request_id)

    async def outputs(self) -> AsyncIterator[Output]:
        """Outputs of all requests as they come, until all have ended.

        Raises:
            ApiError: The engine failed under them.
        """
        while self.unfinished:
            item = await self._outputs.get()
            if isinstance(item, ApiError):
                raise item
            if item.request_id not in self.unfinished:
                continue  # made before the abort was seen
            if item.finish_reason is not None:
                self.unfinished.discard(item.request_id)
            yield item


class Bridge:
    """One engine, its thread, and the groups that wait for it."""

    def __init__(self, engine: EngineLike, *, max_in_flight: int) -> None:
        """``max_in_flight`` is how many sequences may run and wait together; more are answered 429."""
        self._engine = engine
        self._max_in_flight = max_in_flight
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._groups: dict[str, Group] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._closing = False
        self._failures = 0
        self.draining = False
        self.lost = asyncio.Event()
        self.last_step = time.monotonic()

    @property
    def in_flight(self) -> int:
        """Sequences that run or wait."""
        return len(self._groups)

    @property
    def is_alive(self) -> bool:
        """Whether the engine can be expected to go on."""
        return self._thread.is_alive() and not self.lost.is_set() and self._failures < MAX_FAILURES_IN_A_ROW

    def stats(self) -> StatsLike:
        """The engine's figures. Read from the event loop: they are counts, and at worst one step old."""
        return self._engine.stats()

    def start(self) -> None:
        """Begin to serve on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self, *, grace_seconds: float = 0.0) -> None:
        """Let nothing in any more, give what runs some time, abort the rest and end the thread."""
        self.draining = True
        end = time.monotonic() + grace_seconds
        while self._groups and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._fail_all(unavailable("the server is shutting down"))
        self._commands.put(self._stop)
        await asyncio.to_thread(self._thread.join, 10.0)

    def lose(self, reason: str) -> None:
        """The devices are gone: end all that waits for them. For the event loop."""
        self.lost.set()
        self._fail_all(unavailable(f"{reason}; the model is being started again"))
        self._commands.put(self._stop)

    @asynccontextmanager
    async def group(self, requests: Sequence[Request]) -> AsyncIterator[Group]:
        """Let requests in, all or none; leaving the block aborts what is unfinished.

        Raises:
            ApiError: The engine refuses one of them, there is no room, or nothing is served any more.
        """
        self._check_room(len(requests))
        group = Group(requests, abort=self._abort)
        for request in requests:
            self._groups[request.request_id] = group
        accepted: asyncio.Future[ApiError | None] = self._loop.create_future()
        self._commands.put(partial(self._add, group, accepted))
        try:
            refusal = await accepted
            if refusal is not None:
                raise refusal
            yield group
        finally:
            for request in requests:
                group.abort(request.request_id)
                self._groups.pop(request.request_id, None)

    def _check_room(self, count: int) -> None:
        if self.draining:
            raise unavailable("the server is shutting down")
        if not self.is_alive:
            raise unavailable("the engine has failed")
        if count > self._max_in_flight:
            message = f"{count} samples in one request, and at most {self._max_in_flight} are let in"
            raise ApiError(message, param="n", code="invalid_value")
        if self.in_flight + count > self._max_in_flight:
            raise overloaded(self.in_flight)

    def _abort(self, request_id: str) -> None:
        self._groups.pop(request_id, None)
        self._commands.put(partial(self._end, request_id))

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            group = self._groups.get(output.request_id)
            if group is None:
                continue
            if output.finish_reason is not None:
                del self._groups[output.request_id]
            group.put(output)

    def _fail_all(self, error: ApiError) -> None:
        for group in set(self._groups.values()):
            group.put(error)

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        while not self._closing:
            self._take_commands()
            if self._engine.has_work() and not self._closing:
                self._step()

    def _take_commands(self) -> None:
        """All commands there are; while there is nothing else to do, wait for one."""
        try:
            command = self._commands.get(block=not self._engine.has_work())
            while True:
                command()
                command = self._commands.get_nowait()
        except Empty:
            return

    def _add(self, group: Group, accepted: asyncio.Future[ApiError | None]) -> None:
        refusal = None
        for position, request in enumerate(group.requests):
            refusal = self._refusal(request)
            if refusal is not None:
                for added in group.requests[:position]:
                    self._engine.abort(added.request_id)
                break
        self._loop.call_soon_threadsafe(_settle, accepted, refusal)

    def _end(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def _refusal(self, request: Request) -> ApiError | None:
        try:
            self._engine.add_request(request)
        except RequestError as error:
            return of_engine(error)
        except Exception:  # noqa: BLE001 — whatever it is, it must not end the thread that others wait for
            _LOG.exception("the engine failed to take a request")
            return engine_failed()
        return None

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except HostLostError as error:
            self._closing = True
            self._loop.call_soon_threadsafe(self.lose, error.message)
            return
        except Exception:  # noqa: BLE001 — the serving loop: fail those who wait, live on
            self._failed()
            return
        self._failures = 0
        self.last_step = time.monotonic()
        if outputs:
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _failed(self) -> None:
        _LOG.exception("a step of the engine failed")
        self._failures += 1
        for request_id in list(self._groups):
            self._engine.abort(request_id)
        self._loop.call_soon_threadsafe(self._fail_all, engine_failed())

    def _stop(self) -> None:
        self._closing = True


def _settle(accepted: asyncio.Future[ApiError | None], refusal: ApiError | None) -> None:
    if not accepted.done():
        accepted.set_result(refusal)
