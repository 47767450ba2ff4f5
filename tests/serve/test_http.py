"""Faults, limits and ends: one request's trouble is answered and hurts no other."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.fakes.toy_engine import ToyEngine, says
from tests.serve.server import Running, running, toy_served
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.http import Front
from tpuctl.serve.server import ServerOptions

SLOW = 0.01


@pytest.fixture
def served() -> Iterator[Running]:
    with running() as found:
        yield found


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "prompt": "hello", **fields}


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": "toy", "prompt": "\\ud800"}',
        b'{"model": "toy", "prompt": "a", "temperature": NaN}',
        b'{"model": "toy", "prompt": "a", "temperature": 1e999}',
        b'{"model": "toy", "prompt": "\xff"}',
        b'{"model": "toy", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_body_that_is_no_request_is_answered_400(served: Running, body: bytes) -> None:
    response = served.client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]
    assert served.client.post("/v1/completions", json=completion()).status_code == 200


def test_body_of_another_type_is_answered_415(served: Running) -> None:
    assert served.client.post("/v1/completions", data=completion()).status_code == 415


def test_body_that_is_too_large_is_answered_413_whether_it_says_so_or_not() -> None:
    with running(http=HttpOptions(max_body_bytes=10_000)) as served:
        large = json.dumps(completion(prompt="x" * 20_000)).encode()
        header = {"Content-Type": "application/json"}

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(large), 1000):
                yield large[start : start + 1000]

        for content in (large, chunks()):
            response = httpx.post(f"{served.url}/v1/completions", content=content, headers=header)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"


def test_unknown_paths_methods_and_models_are_answered_in_the_same_form(served: Running) -> None:
    asked = [
        (served.client.get("/v1/nothing"), 404),
        (served.client.get("/v1/completions"), 405),
        (served.client.post("/v1/completions", json=completion(model="another")), 404),
    ]
    for response, status in asked:
        assert response.status_code == status
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}


def test_template_that_refuses_a_conversation_is_answered_with_its_own_words(served: Running) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    response = served.client.post("/v1/chat/completions", json={"model": "toy", "messages": messages})
    assert response.status_code == 400
    assert "a system message comes first" in response.json()["error"]["message"]


def test_chat_without_a_template_is_answered_400() -> None:
    with running(served=toy_served(template=None)) as served:
        body = {"model": "toy", "messages": [{"role": "user", "content": "a"}]}
        assert served.client.post("/v1/chat/completions", json=body).json()["error"]["code"] == "no_chat_template"


def test_first_token_that_ends_the_text_is_an_empty_answer(served: Running) -> None:
    body = completion(logit_bias={"256": 100}, max_tokens=1)
    for stream in (False, True):
        response = served.client.post("/v1/completions", json={**body, "stream": stream})
        answers = events(response.text) if stream else [response.json()]
        choices = [choice for answer in answers for choice in answer["choices"]]
        assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("", "stop")]


def test_prompt_that_fills_the_context_but_for_one_token_gets_it() -> None:
    with running(served=toy_served(max_length=64)) as served:
        header = len("<user><assistant>")
        body = {"model": "toy", "messages": [{"role": "user", "content": "x" * (63 - header)}]}
        answer = served.client.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        longer = {"model": "toy", "messages": [{"role": "user", "content": "x" * (64 - header)}]}
        error = served.client.post("/v1/chat/completions", json=longer).json()["error"]
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


def test_prompt_that_can_never_fit_is_answered_at_once() -> None:
    with running(ToyEngine(num_pages=8)) as served:
        response = served.client.post("/v1/completions", json=completion(prompt="x" * 60))
        assert response.status_code == 400
        assert "needs 16 pages, there are 8" in response.json()["error"]["message"]
        assert served.client.post("/v1/completions", json=completion()).status_code == 200


def test_streamed_text_is_the_whole_text_with_stops_across_tokens() -> None:
    said = "k1 k2 k3 k4 🙂"
    with running(ToyEngine(says(*said.encode()))) as served:
        for stop in ("k2 k3", "3", "🙂", "nowhere"):
            body = completion(stop=[stop], max_tokens=50)
            whole = served.client.post("/v1/completions", json=body).json()["choices"][0]
            chunks = events(served.client.post("/v1/completions", json={**body, "stream": True}).text)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"] == said.partition(stop)[0]
            assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_more_requests_than_are_let_in_are_told_to_come_again() -> None:
    options = ServerOptions(port=0, max_in_flight=6, drain_seconds=0)
    with running(ToyEngine(max_running=2, step_seconds=SLOW), options=options) as served:

        def ask(_: int) -> httpx.Response:
            return httpx.post(f"{served.url}/v1/completions", json=completion(max_tokens=60), timeout=60)

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(ask, range(20)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert len(answers) - len(refused) >= 6
        assert all(
            answer.headers["retry-after"] and answer.json()["error"]["code"] == "overloaded" for answer in refused
        )
        served.wait_until_idle()
        assert served.client.post("/v1/completions", json=completion()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_away_free_pages_and_the_queue(stream: bool) -> None:
    with running(ToyEngine(max_running=4, step_seconds=SLOW)) as served:
        sockets = [_posted(served, completion(max_tokens=200, stream=stream)) for _ in range(20)]
        _wait_until(lambda: served.engine.stats().running + served.engine.stats().waiting == 20)
        for opened in sockets:
            opened.close()
        start = time.monotonic()
        assert served.client.post("/v1/completions", json=completion(max_tokens=2)).status_code == 200
        served.wait_until_idle(seconds=1)
        assert time.monotonic() - start < 1


def test_request_that_takes_too_long_ends_with_a_status_or_an_error_event() -> None:
    with running(ToyEngine(step_seconds=SLOW)) as served:
        header = {"X-Request-Timeout-Seconds": "0.1"}
        whole = served.client.post("/v1/completions", json=completion(max_tokens=200), headers=header)
        assert (whole.status_code, whole.json()["error"]["code"]) == (408, "request_timeout")
        body = completion(max_tokens=200, stream=True)
        stream = served.client.post("/v1/completions", json=body, headers=header)
        assert events(stream.text)[-1]["error"]["code"] == "request_timeout"
        assert "[DONE]" not in stream.text
        served.wait_until_idle(seconds=1)


def test_failing_step_fails_those_who_wait_and_no_one_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="tpuctl.serve")
    with running() as served:
        served.engine.fail_next_steps = 1
        failed = served.client.post("/v1/completions", json=completion())
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_failed")
        assert "on fire" not in failed.text
        assert served.client.post("/v1/completions", json=completion()).status_code == 200
        assert served.client.get("/health").status_code == 200


def test_engine_that_fails_again_and_again_is_unhealthy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="tpuctl.serve")
    with running() as served:
        served.engine.fail_next_steps = 100
        for _ in range(3):
            assert served.client.post("/v1/completions", json=completion()).status_code == 500
        assert served.client.post("/v1/completions", json=completion()).status_code == 503
        assert served.client.get("/health").status_code == 503


def test_only_one_thread_touches_the_engine(served: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: httpx.post(f"{served.url}/v1/completions", json=completion()), range(16)))
    assert len(served.engine.threads) == 1
    assert threading.get_ident() not in served.engine.threads


def test_keys_guard_what_costs_and_not_the_probes() -> None:
    from tpuctl.serve.keys import Keys

    with running(http=HttpOptions(keys=Keys(["one-of-the-keys", "other-of-the-keys"]))) as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic one-of-the-keys"}):
            response = served.client.post("/v1/completions", json=completion(), headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        for key in ("one-of-the-keys", "other-of-the-keys"):
            right = {"Authorization": f"Bearer {key}"}
            assert served.client.post("/v1/completions", json=completion(), headers=right).status_code == 200
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert served.client.get(path).status_code == 200


def test_tokens_of_a_prompt_and_back(served: Running) -> None:
    found = served.client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert (found["count"], found["tokens"], found["max_model_len"]) == (3, [104, 195, 169], 256)
    assert served.client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "hé"}
    messages = [{"role": "user", "content": "a"}]
    chat = served.client.post("/tokenize", json={"messages": messages}).json()
    assert bytes(chat["tokens"]).decode() == "<user>a<assistant>"
    assert served.client.post("/tokenize", json={}).status_code == 400
    assert served.client.post("/detokenize", json={"tokens": [999]}).json()["error"]["param"] == "tokens"


def test_metrics_count_what_was_served(served: Running) -> None:
    served.client.post("/v1/completions", json=completion(max_tokens=5, n=2))
    served.client.post("/v1/completions", json=completion(temperature=-1))
    text = served.client.get("/metrics").text
    for line in (
        'vllm:generation_tokens_total{model_name="toy"} 10.0',
        'vllm:request_success_total{finished_reason="length",model_name="toy"} 2.0',
        'vllm:time_to_first_token_seconds_count{model_name="toy"} 2.0',
        'vllm:inter_token_latency_seconds_count{model_name="toy"} 8.0',
        'vllm:num_requests_running{model_name="toy"} 0.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="toy"} 0.0',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="toy"} 0.0',
        'tpuctl:http_answers_total{path="/v1/completions",status="400"} 1.0',
    ):
        assert line in text


def test_server_that_is_not_ready_says_what_it_waits_for() -> None:
    from starlette.testclient import TestClient

    front = Front(HttpOptions())
    front.phase = "loading weights"
    client = TestClient(front.app())
    assert (client.get("/health").status_code, client.get("/ready").status_code) == (200, 503)
    assert client.get("/ready").json() == {"status": "loading weights"}
    refused = client.post("/v1/completions", json=completion())
    assert refused.status_code == 503
    assert "loading weights" in refused.json()["error"]["message"]


def _posted(served: Running, body: dict[str, Any]) -> socket.socket:
    """A request sent over a socket of its own, whose answer nobody reads."""
    data = json.dumps(body).encode()
    opened = socket.create_connection(("127.0.0.1", served.server.port))
    headers = f"Host: t\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    opened.sendall(f"POST /v1/completions HTTP/1.1\r\n{headers}".encode() + data)
    return opened


def _wait_until(condition: Any, *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
