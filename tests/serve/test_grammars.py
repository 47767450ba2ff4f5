"""Forms of answers as grammars of the engine, over a tokenizer of the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.server import running
from tpuctl.engine.request import Grammar, RequestError
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.serve.protocol.formats import ResponseFormat
from tpuctl.text import Tokenizer, load_tokenizer, train_bpe


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


def form(**fields: Any) -> ResponseFormat:
    return ResponseFormat.model_validate_json(json.dumps(fields))


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


def test_form_that_is_none_names_the_field(make: MakeGrammar) -> None:
    with pytest.raises(RequestError) as error:
        make(form(type="regex", regex="("))
    assert error.value.param == "response_format"


def test_type_without_its_field_is_refused_by_name() -> None:
    with running() as served:
        body = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "regex"}}
        response = served.client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")
