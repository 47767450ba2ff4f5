"""Forms of answers as grammars of the engine, over a tokenizer of the tokenizers library."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.toy_engine import ToyEngine
from tests.serve.conformance import tool
from tests.serve.server import running, toy_grammars
from tpuctl.engine.request import Grammar, RequestError
from tpuctl.serve.forms import Form, form_of_chat
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.serve.protocol import ChatBody, parse_body
from tpuctl.text import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_bpe(["some text to learn pieces of", '{"name": "value"}'] * 20, vocab_size=300, path=path)
    return path


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return load_tokenizer(str(tokenizer_file), directory=tokenizer_file.parent, vocab_size=512)


@pytest.fixture(scope="module")
def make(tokenizer_file: Path, tokenizer: Tokenizer) -> MakeGrammar:
    return grammar_maker(tokenizer_file.read_text(), tokenizer=tokenizer)


def form(**fields: Any) -> Form:
    return bound(response_format=fields)


def bound(**fields: Any) -> Form:
    body = {"model": "toy", "messages": [{"role": "user", "content": "?"}], **fields}
    found = form_of_chat(parse_body(ChatBody, json.dumps(body).encode()))
    assert found is not None
    return found


def takes(grammar: Grammar, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a whole text, and then the end, is allowed token by token."""
    for token in [*tokenizer.parse(text).ids.tolist(), tokenizer.special.eos_ids[0]]:
        words = grammar.mask().view(np.uint32)
        if not words[token // 32] >> np.uint32(token % 32) & 1:
            return False
        grammar.accept(token)
    return True


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"type": "json_object"}, '{"a":1}', "[1]"),
        ({"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}, '{"age":7}', '{"age":"7"}'),
        ({"type": "regex", "regex": "[ab]+c"}, "abac", "abad"),
        ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, "no", "maybe"),
    ],
)
def test_form_takes_what_fits_and_nothing_else(
    make: MakeGrammar, tokenizer: Tokenizer, fields: dict[str, Any], right: str, wrong: str
) -> None:
    assert takes(make(form(**fields)), right, tokenizer)
    assert not takes(make(form(**fields)), wrong, tokenizer)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOW = {"type": "function", "function": {"name": "now"}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CALL_WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Praha"}}\n</tool_call>'
WRONG_WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"tool_choice": "required"}, CALL_NOW, "noon"),
        ({"tool_choice": "required"}, f"{CALL_WEATHER}\n{CALL_NOW}", WRONG_WEATHER),
        ({"tool_choice": "required", "parallel_tool_calls": False}, CALL_NOW, f"{CALL_NOW}\n{CALL_NOW}"),
        ({"tool_choice": NAMED}, CALL_WEATHER, CALL_NOW),
        ({"tools": [NOW, STRICT]}, f"Let <me> see. {CALL_WEATHER} So.", f"Let me see. {WRONG_WEATHER}"),
        ({"tools": [NOW, STRICT]}, f"{CALL_NOW}{CALL_WEATHER}", CALL_NOW.replace("now", "then")),
        ({"response_format": {"type": "json_object"}}, CALL_NOW, "noon"),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', f'{{"a": 1}}{CALL_NOW}'),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
            f"no call, or {CALL_WEATHER}",
            CALL_NOW,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["json", "bytes"])
def test_calls_that_are_asked_for_are_taken_and_no_others(
    make: MakeGrammar, tokenizer: Tokenizer, kind: str, fields: dict[str, Any], right: str, wrong: str
) -> None:
    if kind == "bytes":
        make, tokenizer = toy_grammars(), ByteTokenizer()
    form = bound(**{"tools": [NOW, WEATHER], **fields})
    assert takes(make(form), right, tokenizer)
    assert not takes(make(form), wrong, tokenizer)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True, "parameters": []}}]}, "tools"),
        ({"tools": [tool("a", strict=True, parameters={"type": "array"})]}, "tools"),
        ({"tools": [tool("a", strict=True, parameters={"properties": {"x": {"$ref": "#/none"}}})]}, "tools"),
    ],
)
def test_calls_that_cannot_be_bound_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "tools": [NOW], **fields}
    with running() as served:
        response = served.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"].partition("[")[0] == param


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}, "no text fits it"),
        ({"type": "regex", "regex": "("}, "unclosed group"),
    ],
)
def test_reason_of_a_form_that_is_none_is_said_without_the_parsers_state(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as error:
        toy_grammars()(form(**fields))
    assert "<state>" not in error.value.message


def test_form_that_proves_too_large_ends_its_own_request_alone_and_is_no_fault_of_the_server() -> None:
    bomb = {"type": "regex", "regex": "(a{1000}){1000}"}
    body = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "max_tokens": 50}
    with running(ToyEngine(step_seconds=0.002)) as served, ThreadPoolExecutor(1) as pool:
        other = pool.submit(served.client.post, "/v1/chat/completions", json=body)
        response = served.client.post("/v1/chat/completions", json={**body, "response_format": bomb}, timeout=60)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")
        assert other.result().status_code == 200
        served.wait_until_idle()


def test_form_that_is_none_names_the_field(make: MakeGrammar) -> None:
    with pytest.raises(RequestError) as error:
        make(form(type="regex", regex="("))
    assert error.value.param == "response_format"


def test_type_without_its_field_is_refused_by_name() -> None:
    with running() as served:
        body = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "regex"}}
        response = served.client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")
