"""Every documented field is honoured or refused by name; and the table in the documentation says just that."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import EmbeddingCreateParams
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam

from tests.fakes.toy_embedder import ToyEmbedder
from tests.serve.conformance import BODIES, CHAT, COMPLETIONS, DOCUMENT, EMBEDDINGS, LINES, Probe, written
from tests.serve.server import Running, running, toy_served
from tpuctl.serve.protocol.sampling import StreamOptions

DOCUMENTED = {
    COMPLETIONS: (completion_params.CompletionCreateParamsBase, completion_params.CompletionCreateParamsStreaming),
    CHAT: (chat_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsStreaming),
    EMBEDDINGS: (EmbeddingCreateParams,),
}
ALL = [(path, field) for path, lines in LINES.items() for field in lines]


Both = dict[bool, Running]


@pytest.fixture(scope="module")
def served() -> Iterator[Both]:
    """A decoder, and under True an encoder."""
    made = toy_served(max_length=1024)
    with running(served=made) as decoder, running(served=made, embedder=ToyEmbedder()) as encoder:
        yield {False: decoder, True: encoder}


def probe_of(served: Both, path: str) -> Probe:
    found = served[path == EMBEDDINGS]
    return Probe(client=found.client, path=path, engine=found.engine)


@pytest.mark.parametrize("path", LINES)
def test_every_field_that_openai_documents_is_known_and_proved(path: str) -> None:
    documented = {name for kind in DOCUMENTED[path] for name in typing.get_type_hints(kind)}
    assert documented <= BODIES[path].model_fields.keys()
    assert LINES[path].keys() == BODIES[path].model_fields.keys()


def test_every_stream_option_that_openai_documents_is_known() -> None:
    assert typing.get_type_hints(ChatCompletionStreamOptionsParam).keys() == StreamOptions.model_fields.keys()


@pytest.mark.parametrize(("path", "field"), ALL)
def test_field_is_honoured(served: Both, path: str, field: str) -> None:
    line, probe = LINES[path][field], probe_of(served, path)
    if line.proof is not None:
        line.proof(probe)
    for value in line.neutral:
        assert probe.text(**{field: value}) == probe.text()


@pytest.mark.parametrize(("path", "field"), ALL)
def test_field_with_a_bad_value_is_refused_by_name(served: Both, path: str, field: str) -> None:
    probe = probe_of(served, path)
    before = len(probe.engine.seen)
    for value in (*LINES[path][field].refused, [[["nested"]]]):
        response = probe.post(**{field: value})
        error: dict[str, Any] = response.json()["error"]
        assert response.status_code == 400, (value, response.text)
        assert str(error["param"]).partition("[")[0].partition(".")[0] == field, (value, error)
        assert error["message"]
        assert error["type"] == "invalid_request_error"
    assert len(probe.engine.seen) == before


@pytest.mark.parametrize(("path", "field"), ALL)
def test_field_that_is_null_is_as_if_left_out(served: Both, path: str, field: str) -> None:
    if BODIES[path].model_fields[field].is_required():
        return
    probe = probe_of(served, path)
    assert probe.post(**{field: None}).status_code == 200


@pytest.mark.parametrize("path", LINES)
def test_unknown_field_is_refused_by_name(served: Both, path: str) -> None:
    error = probe_of(served, path).post(no_such_field=1).json()["error"]
    assert (error["param"], error["code"]) == ("no_such_field", "unknown_parameter")


def test_documented_table_is_that_of_the_tests() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text), "run `python -m tests.serve.conformance`"
