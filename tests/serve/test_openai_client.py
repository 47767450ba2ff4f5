"""What people already use: the official client, over loopback."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import Running, running
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.keys import Keys

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
KEY = "a-secret-of-this-test"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(http=HttpOptions(keys=Keys(["another-key-of-this", KEY]))) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy", "toy:poet"]
    assert client.models.retrieve("toy:poet").id == "toy:poet"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_model_with_an_adapter_says_whose_it_is_and_where_it_is_from(client: openai.OpenAI) -> None:
    told = {model.id: model.to_dict() for model in client.models.list()}
    assert (told["toy"]["root"], told["toy"]["parent"]) == ("toy", None)
    assert (told["toy:poet"]["root"], told["toy:poet"]["parent"]) == ("/adapters/poet", "toy")


def test_model_of_an_adapter_that_is_not_there_is_not_found(client: openai.OpenAI, served: Running) -> None:
    seen = len(served.engine.seen)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="toy:clerk", messages=HELLO)
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    answer = client.chat.completions.create(model="toy:poet", messages=HELLO, max_tokens=1)
    assert answer.model == "toy:poet"
    assert [request.adapter for request in served.engine.seen[seen:]] == ["toy:poet"]


def test_chat_streams_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="toy", messages=HELLO, max_tokens=9, temperature=0)
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=9, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 9


def test_samples_stream_under_their_own_index_and_end_once(client: openai.OpenAI) -> None:
    texts = {0: "", 1: "", 2: ""}
    ends: list[int] = []
    for chunk in client.chat.completions.create(
        model="toy", messages=HELLO, n=3, stream=True, max_tokens=6, logprobs=True, temperature=1
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == [0, 1, 2]
    assert all(len(text) == 6 for text in texts.values())
    assert len(set(texts.values())) == 3


def test_samples_with_a_seed_differ_among_each_other_and_are_the_same_again(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(model="toy", prompt="x", n=3, seed=7, max_tokens=8)
        return [choice.text for choice in answer.choices]

    assert texts() == texts()
    assert len(set(texts())) == 3


def test_completions_of_several_prompts_keep_their_order(client: openai.OpenAI) -> None:
    prompts = ["one", "two", "three"]
    answer = client.completions.create(model="toy", prompt=prompts, n=2, echo=True, max_tokens=2)
    assert [choice.text[:-2] for choice in answer.choices] == [text for text in prompts for _ in range(2)]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("onetwothree")


def test_faults_come_as_the_clients_own_errors(client: openai.OpenAI, served: Running) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="toy", messages=HELLO, temperature=-1)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.embeddings.create(model="toy", input="hello")
    assert unsupported.value.param == "model"
    stranger = openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_client_that_leaves_a_stream_frees_what_it_held() -> None:
    with running(ToyEngine(step_seconds=0.002)) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="toy", messages=HELLO, stream=True, max_tokens=200)
        next(iter(stream))
        stream.close()
        served.wait_until_idle(seconds=1)
        assert served.engine.stats().output_tokens < 200
