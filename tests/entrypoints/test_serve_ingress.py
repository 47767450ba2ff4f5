"""Requests on their way to replicas: passed on whole to the model they name, to another replica until one answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import toy_served
from tpuctl.entrypoints import serve_passing
from tpuctl.entrypoints.serve_call import Call, Message, answered
from tpuctl.entrypoints.serve_ingress import Behind, Ingress
from tpuctl.entrypoints.serve_passing import Replicas
from tpuctl.errors import HostLostError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.http import Front
from tpuctl.serve.keys import Keys
from tpuctl.serve.metrics import Metrics, joined
from tpuctl.serve.served import Listed
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


def toy_replica(engine: ToyEngine | None = None, *, name: str = "toy") -> Answer:
    """A replica over the toy engine; to be made on the event loop."""
    front = Front(HttpOptions())
    served = replace(toy_served(), name=name, adapters={f"{name}:poet": "adapters/poet"})
    begin_serving(front, Loaded(engine=engine or ToyEngine(), served=served), ServerOptions())
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


def ingress_of(handles: dict[str, Handle], *, keys: Keys | None = None, metrics: bytes = b"") -> Ingress:
    limits = HttpOptions(max_body_bytes=1000, keys=keys)

    async def read_metrics() -> bytes:
        return metrics

    behind = [
        Behind(
            listed=Listed(name=name, max_length=64, created=1, adapters={f"{name}:poet": "adapters/poet"}),
            replicas=Replicas(handle, limits=limits, timeout_seconds=5),
        )
        for name, handle in handles.items()
    ]
    ingress = Ingress(behind, limits=limits, read_metrics=read_metrics)
    ingress.status = "ready"
    return ingress


def client_of(ingress: Ingress) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=ingress.app()), base_url="http://toy")


def retries(ingress: Ingress) -> int:
    return sum(model.replicas.retries for model in ingress.models)


def asked(make: Callable[[], list[Answer]], **body: Any) -> tuple[httpx.Response, Ingress, Handle]:
    async def ask() -> tuple[httpx.Response, Ingress, Handle]:
        handle = Handle(*make())
        ingress = ingress_of({"toy": handle})
        async with client_of(ingress) as client:
            return await client.post("/v1/completions", json=BODY | body), ingress, handle

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_passing, "_TRY_AGAIN_SECONDS", 0.0)


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
    assert (answer.status_code, retries(ingress)) == (200, 2)


def test_replica_that_says_it_is_not_available_is_passed_over() -> None:
    answer, ingress, _ = asked(lambda: [lambda call: answered(Front(HttpOptions()).app(), call), toy_replica()])
    assert (answer.status_code, retries(ingress)) == (200, 1)


def test_stream_that_breaks_ends_with_an_error_event() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    begun = [[start, {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}]]
    answer, ingress, _ = asked(lambda: [failing(ActorDiedError(), after=begun)], stream=True)
    assert answer.status_code == 200
    assert "replica was lost" in json.loads(answer.text.split("data: ")[-1])["error"]["message"]
    assert retries(ingress) == 0


def test_no_room_is_429_a_fault_500_and_a_large_body_413() -> None:
    full, *_ = asked(lambda: [failing(BackPressureError(num_queued_requests=9, max_queued_requests=9))])
    assert full.status_code == 429
    fault = RayTaskError("answer", "traceback", ValueError("a bug")).as_instanceof_cause()
    failed, ingress, _ = asked(lambda: [failing(fault)])
    assert (failed.status_code, retries(ingress)) == (500, 0)
    large, *_ = asked(lambda: [toy_replica()], prompt="x" * 2000)
    assert large.status_code == 413


def two_models(*requests: tuple[str, str, Any], keys: Keys | None = None) -> tuple[list[httpx.Response], list[int]]:
    """The answers of an endpoint of the models ``small`` and ``big``, and how many requests each was given."""

    async def ask() -> tuple[list[httpx.Response], list[int]]:
        handles = {name: Handle(toy_replica(name=name)) for name in ("small", "big")}
        async with client_of(ingress_of(handles, keys=keys)) as client:
            answers = [await client.request(method, path, json=body) for method, path, body in requests]
        return answers, [len(handle.streams) for handle in handles.values()]

    return asyncio.run(ask())


def test_request_goes_to_the_model_it_names_or_whose_adapter_it_names() -> None:
    names = ("small", "big", "big:poet")
    answers, given = two_models(*(("POST", "/v1/completions", BODY | {"model": name}) for name in names))
    assert [answer.json()["model"] for answer in answers] == list(names)
    assert given == [1, 2]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("/v1/completions", BODY | {"model": "bigg"}, 404, "model", "model_not_found"),
        ("/v1/completions", {"prompt": "hello"}, 400, "model", "missing_required_parameter"),
        ("/v1/chat/completions", {"model": 3, "messages": []}, 400, "model", "invalid_value"),
        ("/tokenize", {"prompt": "hello"}, 400, "model", "missing_required_parameter"),
        ("/tokenize", ["hello"], 400, None, "invalid_value"),
    ],
)
def test_request_that_names_no_model_of_several_is_answered_at_once(path, body, status, param, code) -> None:
    (answer,), given = two_models(("POST", path, body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert given == [0, 0]


def test_list_of_models_and_what_else_concerns_all_of_them_needs_no_replica() -> None:
    paths = (
        "/v1/models",
        "/v1/models/big:poet",
        "/v1/models/bigg",
        "/ready",
        "/version",
        "/openapi.json",
        "/v2",
        "/v1/completions",
    )
    answers, given = two_models(*(("GET", path, None) for path in paths))
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200, 200, 200, 404, 405]
    assert [model["id"] for model in answers[0].json()["data"]] == ["small", "small:poet", "big", "big:poet"]
    assert answers[1].json() == {
        "id": "big:poet",
        "object": "model",
        "created": 1,
        "owned_by": "tpuctl",
        "root": "adapters/poet",
        "parent": "big",
        "max_model_len": 64,
    }
    assert given == [0, 0]


def test_model_that_was_given_up_is_unavailable_at_once_and_the_other_answers() -> None:
    async def ask() -> list[httpx.Response]:
        ingress = ingress_of({"small": Handle(failing(lost())), "big": Handle(toy_replica(name="big"))})
        ingress.given_up = frozenset({"small"})
        async with client_of(ingress) as client:
            return [await client.post("/v1/completions", json=BODY | {"model": name}) for name in ("small", "big")]

    gone, answered_by_other = asyncio.run(ask())
    assert (gone.status_code, answered_by_other.status_code) == (503, 200)
    assert gone.headers["retry-after"]


def test_who_has_no_key_learns_no_names() -> None:
    answers, _ = two_models(("POST", "/v1/completions", BODY), ("GET", "/v1/models", None), keys=Keys(["long-enough"]))
    assert [answer.status_code for answer in answers] == [401, 401]
    assert not any("small" in answer.text for answer in answers)


def test_metrics_of_replicas_are_told_apart_by_their_labels() -> None:
    def of(name: str, *, finished: int) -> bytes:
        metrics = Metrics(None, model_name=name)
        for _ in range(finished):
            metrics.ended("stop")
        metrics.answered("/v1/completions", status=200)
        return metrics.text()

    texts = [
        ({"model_name": name, "replica": replica}, of(name, finished=count))
        for name, replica, count in (("small", "a", 1), ("big", "b", 2), ("big", "c", 3))
    ]

    async def ask() -> str:
        async with client_of(ingress_of({"small": Handle(failing(lost()))}, metrics=joined(texts))) as client:
            return (await client.get("/metrics")).text

    text = asyncio.run(ask())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = {
        sample.labels["replica"]: sample.value
        for sample in families["vllm:request_success"].samples
        if sample.name.endswith("_total")
    }
    assert counted == {"a": 1, "b": 2, "c": 3}
    answers = families["tpuctl:http_answers"].samples
    assert {sample.labels["model_name"] for sample in answers} == {"small", "big"}
    assert text.count("# TYPE vllm:time_to_first_token_seconds histogram") == 1


def test_client_that_leaves_ends_its_request_in_the_engine() -> None:
    async def leave() -> None:
        engine = ToyEngine()
        handle = Handle(toy_replica(engine))
        app = ingress_of({"toy": handle}).app()
        body = json.dumps(BODY | {"max_tokens": 200, "stream": True}).encode()
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent = asyncio.Event()

        async def send(_: Message) -> None:
            sent.set()

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
        work = asyncio.create_task(app(scope, inbox.get, send))
        await sent.wait()
        inbox.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(work, 5)
        assert handle.streams[0].cancelled

    asyncio.run(leave())


def test_requests_that_begin_alike_have_one_prefix_and_others_another() -> None:
    long = "a system prompt that all of them share " * 10
    bodies = [{"prompt": long + "x"}, {"prompt": long + "y"}, {"prompt": "other"}, {"prompt": long, "model": "b"}]
    prefixes = [_call(json.dumps(body).encode()).asks().prefix for body in bodies]
    assert prefixes[0] == prefixes[1]
    assert len(set(prefixes)) == 3
    chats = [{"messages": [{"role": "system", "content": long}, {"role": "user", "content": q}]} for q in "ab"]
    assert len({_call(json.dumps(chat).encode()).asks().prefix for chat in chats}) == 1
    assert [_call(body).asks().prefix for body in (b"no json", b"[]", b"{}")] == ["", "", ""]


def _call(body: bytes) -> Call:
    return Call(method="POST", path="/v1/completions", query=b"", headers=(), body=body)
