"""Requests on their way to replicas: passed on whole, given to another replica until something has been answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import toy_served
from tpuctl.entrypoints import serve_ingress
from tpuctl.entrypoints.serve_call import Call, Message, answered
from tpuctl.entrypoints.serve_ingress import Ingress
from tpuctl.errors import HostLostError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.http import Front
from tpuctl.serve.server import Loaded, ServerOptions, begin_serving

Answer = Callable[[Call], AsyncIterator[list[Message]]]
BODY = {"model": "toy", "prompt": "hello", "max_tokens": 8, "temperature": 0}


class Stream:
    """What a call of a streaming method of a handle returns."""

    def __init__(self, batches: AsyncIterator[list[Message]]) -> None:
        self._batches = batches
        self.cancelled = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[Message]:
        return await anext(self._batches)

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Ray Serve's handle, whose replicas are functions that take turns."""

    def __init__(self, *replicas: Answer) -> None:
        self.replicas = list(replicas)
        self.streams: list[Stream] = []
        self.prefixes: list[str] = []
        self.answer = SimpleNamespace(remote=self._remote)

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def _remote(self, call: Call, *, prefix: str) -> Stream:
        replica = self.replicas.pop(0) if len(self.replicas) > 1 else self.replicas[0]
        self.prefixes.append(prefix)
        self.streams.append(Stream(replica(call)))
        return self.streams[-1]


def toy_replica(engine: ToyEngine | None = None) -> Answer:
    """A replica over the toy engine; to be made on the event loop."""
    front = Front(HttpOptions())
    begin_serving(front, Loaded(engine=engine or ToyEngine(), served=toy_served()), ServerOptions())
    app = front.app()
    return lambda call: answered(app, call)


def failing(error: Exception, *, after: list[list[Message]] | None = None) -> Answer:
    async def answer(_: Call) -> AsyncIterator[list[Message]]:
        for batch in after or []:
            yield batch
        raise error

    return answer


def lost() -> RayTaskError:
    return RayTaskError("answer", "traceback", HostLostError("its slice is gone")).as_instanceof_cause()


def asked(make: Callable[[], list[Answer]], **body: Any) -> tuple[httpx.Response, Ingress, Handle]:
    async def ask() -> tuple[httpx.Response, Ingress, Handle]:
        handle = Handle(*make())
        ingress = Ingress(handle, limits=HttpOptions(max_body_bytes=1000), timeout_seconds=5)
        transport = httpx.ASGITransport(app=ingress)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
            return await client.post("/v1/completions", json=BODY | body), ingress, handle

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_ingress, "_TRY_AGAIN_SECONDS", 0.0)


def test_answer_is_that_of_the_replica_whole_and_streamed() -> None:
    whole, *_ = asked(lambda: [toy_replica()])
    streamed, _, handle = asked(lambda: [toy_replica()], stream=True)
    assert (whole.status_code, streamed.status_code) == (200, 200)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole.json()["choices"][0]["text"]
    assert streamed.text.rstrip().endswith("[DONE]")
    assert handle.streams[0].cancelled, "what is held for the answer is let go"


@pytest.mark.parametrize("error", [lost(), ActorDiedError()], ids=["slice-lost", "process-died"])
def test_request_that_nothing_was_answered_to_goes_to_another_replica(error: Exception) -> None:
    answer, ingress, _ = asked(lambda: [failing(error), failing(error), toy_replica()])
    assert (answer.status_code, ingress.retries) == (200, 2)


def test_replica_that_says_it_is_not_available_is_passed_over() -> None:
    answer, ingress, _ = asked(lambda: [lambda call: answered(Front(HttpOptions()).app(), call), toy_replica()])
    assert (answer.status_code, ingress.retries) == (200, 1)


def test_stream_that_breaks_ends_with_an_error_event() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    begun = [[start, {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}]]
    answer, ingress, _ = asked(lambda: [failing(ActorDiedError(), after=begun)], stream=True)
    assert answer.status_code == 200
    assert "replica was lost" in json.loads(answer.text.split("data: ")[-1])["error"]["message"]
    assert ingress.retries == 0


def test_no_room_is_429_a_fault_500_and_a_large_body_413() -> None:
    full, *_ = asked(lambda: [failing(BackPressureError(num_queued_requests=9, max_queued_requests=9))])
    assert full.status_code == 429
    fault = RayTaskError("answer", "traceback", ValueError("a bug")).as_instanceof_cause()
    failed, ingress, _ = asked(lambda: [failing(fault)])
    assert (failed.status_code, ingress.retries) == (500, 0)
    large, *_ = asked(lambda: [toy_replica()], prompt="x" * 2000)
    assert large.status_code == 413


def test_request_without_a_body_is_passed_on_too() -> None:
    async def ask() -> httpx.Response:
        ingress = Ingress(Handle(toy_replica()), limits=HttpOptions(), timeout_seconds=5)
        transport = httpx.ASGITransport(app=ingress)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
            return await client.get("/v1/models")

    assert [model["id"] for model in asyncio.run(ask()).json()["data"]] == ["toy", "toy:poet"]


def test_client_that_leaves_ends_its_request_in_the_engine() -> None:
    async def leave() -> None:
        engine = ToyEngine()
        handle = Handle(toy_replica(engine))
        ingress = Ingress(handle, limits=HttpOptions(max_body_bytes=1000), timeout_seconds=5)
        body = json.dumps(BODY | {"max_tokens": 200, "stream": True}).encode()
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent = asyncio.Event()

        async def send(_: Message) -> None:
            sent.set()

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
        work = asyncio.create_task(ingress(scope, inbox.get, send))
        await sent.wait()
        inbox.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(work, 5)
        assert handle.streams[0].cancelled

    asyncio.run(leave())


def test_requests_that_begin_alike_have_one_prefix_and_others_another() -> None:
    long = "a system prompt that all of them share " * 10
    bodies = [{"prompt": long + "x"}, {"prompt": long + "y"}, {"prompt": "other"}, {"prompt": long, "model": "b"}]
    prefixes = [_call(json.dumps(body).encode()).prefix() for body in bodies]
    assert prefixes[0] == prefixes[1]
    assert len(set(prefixes)) == 3
    chats = [{"messages": [{"role": "system", "content": long}, {"role": "user", "content": q}]} for q in "ab"]
    assert len({_call(json.dumps(chat).encode()).prefix() for chat in chats}) == 1
    assert [_call(body).prefix() for body in (b"no json", b"[]", b"{}")] == ["", "", ""]


def _call(body: bytes) -> Call:
    return Call(method="POST", path="/v1/completions", query=b"", headers=(), body=body)
