"""Load and conversations over a served toy engine: what is counted is what was made."""

from __future__ import annotations

import io

import pytest

from tests.fakes.toy_engine import ToyEngine, says
from tests.serve.server import running, toy_served
from tpuctl.cli.app import run
from tpuctl.cli.chat import Talk
from tpuctl.endpoint.client import Endpoint, RefusedError
from tpuctl.endpoint.load import Load, measure, percentiles
from tpuctl.errors import ClusterError


def test_load_counts_what_the_engine_made() -> None:
    engine = ToyEngine()
    with running(engine) as served:
        load = Load(model="toy", concurrency=4, requests=12, prompt_tokens=40, output_tokens=7)
        found = measure(Endpoint(served.url, key=None), load).document()
    assert (found["requests"], found["failed"], found["output_tokens"]) == (12, 0, 84)
    assert 12 * 30 < found["prompt_tokens"] < 12 * 50
    assert found["first_token_seconds"]["p50"] <= found["answer_seconds"]["p50"]
    assert all(request.sampling.ignore_eos for request in engine.seen)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0}
    assert percentiles([]) == {}


def test_bench_prints_a_row_for_each_concurrency(capsys) -> None:
    with running() as served:
        words = ["--requests", "4", "--concurrency", "1", "--concurrency", "2", "--output-tokens", "3"]
        assert run(["bench", "serve", served.url, "--prompt-tokens", "20", *words]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 3


def test_conversation_goes_along_with_the_next_message() -> None:
    with running(ToyEngine(says(*b"fine"))) as served:
        talk = Talk(Endpoint(served.url, key=None), model="toy", system="be brief")
        assert "".join(talk.answers("how are you?")) == "fine"
        assert "".join(talk.answers("sure?")) == "fine"
        prompt = bytes(token for token in served.engine.seen[-1].prompt if token < 256).decode()
        assert prompt == "<system>be brief<user>how are you?<assistant>fine<user>sure?<assistant>"
        talk.start_over()
        assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_chat_prints_the_answer(capsys) -> None:
    with running(ToyEngine(says(*b"fine \x1b[31m"))) as served:
        assert run(["chat", served.url, "how are you?"]) == 0
    assert capsys.readouterr().out == "fine \\x1b[31m\n"


class _Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_conversation_goes_on_after_an_answer_that_is_refused_or_ended(monkeypatch, capsys) -> None:
    typed = iter(["long " * 100, "short", "/new", "again", ""])
    monkeypatch.setattr("sys.stdin", _Keyboard())
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    with running(ToyEngine(says(*b"fine")), served=toy_served(max_length=60)) as served:
        assert run(["chat", served.url]) == 0
        prompts = [bytes(token for token in request.prompt if token < 256) for request in served.engine.seen]
    assert prompts == [b"<user>short<assistant>", b"<user>again<assistant>"]
    said = capsys.readouterr()
    assert said.out == "fine\nfine\n"
    assert "context length is 60 tokens" in said.err


def test_answer_that_is_ended_half_way_is_remembered_as_far_as_it_came() -> None:
    with running(ToyEngine(says(*b"fine"), step_seconds=0.01)) as served:
        talk = Talk(Endpoint(served.url, key=None), model="toy", system=None)
        answer = talk.answers("how are you?")
        next(answer)
        answer.close()
        served.wait_until_idle()
    assert [message["content"] for message in talk.messages] == ["how are you?", "f"]


def test_refusal_and_absence_are_told_apart(capsys) -> None:
    with running(served=toy_served(template=None)) as served:
        with pytest.raises(RefusedError, match="no chat template") as refused:
            list(
                Endpoint(served.url, key=None).stream(
                    "/v1/chat/completions", {"model": "toy", "messages": [{"role": "user", "content": "a"}]}
                )
            )
        assert (refused.value.status, refused.value.param) == (400, "messages")
        url = served.url
    with pytest.raises(ClusterError):
        Endpoint(url, key=None).models()
    assert run(["chat", "no-address", "hello"]) == 2
