"""A model whose hosts are lost: those who wait are told, the port stays, the model is loaded again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import httpx
import pytest

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import toy_served
from tpuctl.engine.request import Output
from tpuctl.errors import HostLostError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.http import Front
from tpuctl.serve.server import Loaded, Server, ServerOptions

BODY = {"model": "toy", "prompt": "hello", "max_tokens": 200, "ignore_eos": True}


class MortalEngine(ToyEngine):
    """Loses its hosts in the step after it is told to, but not before so many have ``asked``."""

    def __init__(self) -> None:
        super().__init__(step_seconds=0.002)
        self.dying = threading.Event()
        self.asked = 0

    def step(self) -> list[Output]:
        if self.dying.is_set() and len(self.seen) >= self.asked:
            raise HostLostError("host 1 is gone: the connection ended")
        return super().step()


class Served:
    """A server that loads an engine of its own each time, and waits for leave to do it again."""

    def __init__(self) -> None:
        self.engines: list[MortalEngine] = []
        self.lost: list[Future[str]] = []
        self.ready: SimpleQueue[int] = SimpleQueue()
        self.leave: SimpleQueue[None] = SimpleQueue()
        self.server = Server(Front(HttpOptions()), ServerOptions(port=0, drain_seconds=0))
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.ready.get(timeout=10)

    def load(self) -> Loaded:
        if self.engines:
            self.leave.get(timeout=10)
        self.engines.append(MortalEngine())
        self.lost.append(Future())
        return Loaded(engine=self.engines[-1], served=toy_served(), lost=self.lost[-1])

    def again(self) -> None:
        self.leave.put(None)
        self.ready.get(timeout=10)

    def ask(self) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json=BODY, timeout=20)

    def _run(self) -> None:
        asyncio.run(self.server.run(self.load, on_ready=lambda: self.ready.put(1)))


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.stop()
    made.thread.join(20)
    assert not made.thread.is_alive()


def test_loss_in_a_step_is_503_to_those_who_wait_and_an_event_in_a_stream(served: Served) -> None:
    served.engines[0].asked = 5
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(served.ask) for _ in range(4)]
        with httpx.stream("POST", f"{served.url}/v1/completions", json=BODY | {"stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            served.engines[0].dying.set()
            last = [line for line in lines if line][-1]
        answers = [answer.result() for answer in waiting]
    assert "host 1 is gone" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert {answer.status_code for answer in answers} == {503}
    assert all("host 1 is gone" in answer.text and "Retry-After" in answer.headers for answer in answers)
    assert httpx.get(f"{served.url}/ready").status_code == 503
    assert served.ask().status_code == 503, "and so are those that come before it is there again"
    served.again()
    assert httpx.get(f"{served.url}/ready").status_code == 200
    assert served.ask().status_code == 200
    assert len(served.engines) == 2


def test_loss_that_another_thread_notices_while_nothing_runs_has_the_model_loaded_again(served: Served) -> None:
    served.lost[0].set_result("host 0 is gone: its node died")
    served.again()
    assert served.ask().status_code == 200
    assert served.engines[0].steps == 0
