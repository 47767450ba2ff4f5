"""The official client against real engines: a tiny random model, and the small chat model where it is asked for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.serve.serve_here import served_here
from tests.serve.server import TEMPLATE

MODEL = os.environ.get("TPUCTL_TEST_MODEL", "")
SKIP = pytest.mark.skipif(not MODEL, reason="TPUCTL_TEST_MODEL is not set; builtin:smollm2-135m is fetched")
HELLO: Any = [{"role": "user", "content": "Name a colour."}]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["serve-smoke", pytest.param("serve-quickstart", marks=SKIP)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cwd = tmp_path_factory.mktemp("endpoint")
    template = cwd / "template.jinja"
    template.write_text(TEMPLATE)
    overrides = [f"model.chat_template={template}", "engine.max_length=512", "serve.name=toy"]
    if request.param == "serve-quickstart":
        overrides.append(f"model.source={MODEL}")
    with served_here(f"{request.param}.toml", *overrides, cwd=cwd) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_streamed_text_is_that_of_the_whole_answer(client: openai.OpenAI) -> None:
    asked: Any = {"model": "toy", "messages": HELLO, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    # What both found in the prefix cache differs.
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_text_alone_is_that_in_a_full_batch(client: openai.OpenAI) -> None:
    def text(number: int) -> str:
        prompt = f"{number} is a number, and so"
        return client.completions.create(model="toy", prompt=prompt, max_tokens=12, temperature=0).choices[0].text

    alone = [text(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(text, range(6))) == alone


def test_samples_with_a_seed_are_the_same_again_and_differ(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(model="toy", prompt="Once", n=3, seed=7, max_tokens=8, temperature=1)
        return [choice.text for choice in answer.choices]

    assert texts() == texts()
    assert len(set(texts())) == 3


def test_forced_call_is_one_that_fits(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        answer = client.chat.completions.create(
            model="toy",
            messages=HELLO,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=200,
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.function.name == "paint"
        assert json.loads(call.function.arguments)["colour"] in ("red", "green")


def test_answer_bound_to_a_schema_fits_it(client: openai.OpenAI) -> None:
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "c", "schema": {**COLOUR, "x-guidance": {"whitespace_flexible": False}}},
    }
    answer = client.chat.completions.create(model="toy", messages=HELLO, response_format=form, max_tokens=60)
    assert json.loads(answer.choices[0].message.content or "")["colour"] in ("red", "green")


def test_prompt_that_is_echoed_has_its_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="The sea is", echo=True, logprobs=2, max_tokens=1)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert all(value <= 0 for value in found.token_logprobs[1:])
    *echoed, made = found.tokens or ()
    assert "".join(echoed) == "The sea is"
    # What it goes on with may be a part of a character, which is told by its bytes.
    part = made.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1") if "bytes:" in made else b""
    assert answer.choices[0].text == "The sea is" + (part.decode(errors="replace") if part else made)


def test_client_that_leaves_frees_its_pages(client: openai.OpenAI, url: str) -> None:
    stream = client.completions.create(
        model="toy", prompt="On", stream=True, max_tokens=400, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 10
    while (found := figures(url))["vllm:num_requests_running"] or found["vllm:kv_cache_usage_perc"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_fault_names_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="toy", prompt="x", max_tokens=100_000)
    assert refused.value.param == "max_tokens"


def figures(url: str) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
