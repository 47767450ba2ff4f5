"""Calls in an answer's text, whole and as they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.toy_engine import ToyEngine, says
from tests.serve.server import running, toy_served
from tpuctl.serve.tool_calls import Call, CallReader

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
TWO_CALLS = (
    'Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Plzeň"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now"}\n</tool_call>'
)


def read(text: str, *, size: int) -> list[str | tuple[str, str]]:
    reader = CallReader()
    found: list[str | Call] = []
    for start in range(0, len(text), size):
        found += reader.add(text[start : start + size])
    found += reader.finish()
    merged: list[str | tuple[str, str]] = []
    for part in found:
        if isinstance(part, Call):
            merged.append((part.name, part.arguments))
        elif merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_read_in_any_pieces(size: int) -> None:
    assert read(TWO_CALLS, size=size) == ["Let me see.", ("weather", '{"city": "Plzeň"}'), ("now", "{}")]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no json</tool_call>",
        "<tool_call>[1]</tool_call> and more",
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now"',
        "a < b <tool",
    ],
)
def test_what_is_no_call_is_text(text: str, size: int) -> None:
    assert read(text, size=size) == [text]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": "?"}], "tools": [TOOL], **fields}


def test_two_calls_have_their_own_indexes_and_ids_and_arguments_that_are_objects() -> None:
    with running(ToyEngine(says(*TWO_CALLS.encode())), served=toy_served(max_length=1024)) as served:
        choice = served.client.post("/v1/chat/completions", json=chat()).json()["choices"][0]
        calls = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me see."
        assert [call["function"]["arguments"] for call in calls] == ['{"city": "Plzeň"}', "{}"]
        assert len({call["id"] for call in calls}) == 2

        lines = served.client.post("/v1/chat/completions", json=chat(stream=True)).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
        streamed = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert [call["index"] for call in streamed] == [0, 1]
        assert [call["function"]["name"] for call in streamed] == ["weather", "now"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

        one = served.client.post("/v1/chat/completions", json=chat(parallel_tool_calls=False)).json()
        assert len(one["choices"][0]["message"]["tool_calls"]) == 1


def test_tools_are_refused_where_the_template_does_not_read_them_or_the_form_of_calls_is_unknown() -> None:
    for template in ("{{ messages }}", "{{ messages }}{{ tools }}"):
        with running(served=toy_served(template=template)) as served:
            response = served.client.post("/v1/chat/completions", json=chat())
            assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_call_of_an_earlier_turn_reaches_the_template() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    with running(served=toy_served(max_length=1024)) as served:
        response = served.client.post("/v1/chat/completions", json=chat(messages=messages, max_tokens=1))
        assert response.status_code == 200
        prompt = bytes(token for token in served.engine.seen[-1].prompt if token < 256).decode()
    assert '"zone": "UTC"' in prompt
    assert "<tool>noon" in prompt
