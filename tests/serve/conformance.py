"""Field by field: what proves that a field is honoured, and which values of it are refused.

The tests run all of it; ``python -m tests.serve.conformance`` writes the table of docs/serving.md from the same lines.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.toy_engine import ToyEngine
from tpuctl.serve.protocol import Body, ChatBody, CompletionBody, EmbeddingBody

DOCUMENT = Path(__file__).parents[2] / "docs" / "serving.md"
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
BODIES: Mapping[str, type[Body]] = {COMPLETIONS: CompletionBody, CHAT: ChatBody, EMBEDDINGS: EmbeddingBody}
MINIMAL: Mapping[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "toy", "prompt": "hello", "max_tokens": 4, "temperature": 0},
    CHAT: {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0},
    EMBEDDINGS: {"model": "toy", "input": "hello"},
}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One endpoint of a served toy engine."""

    client: httpx.Client
    path: str
    engine: ToyEngine

    def post(self, **fields: Any) -> httpx.Response:
        body = {**MINIMAL[self.path], **fields}
        if fields.get("max_completion_tokens") is not None:
            del body["max_tokens"]
        return self.client.post(self.path, json=body)

    def answer(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def text(self, **fields: Any) -> Any:
        """The text of an answer; its vectors where it makes none."""
        if self.path == EMBEDDINGS:
            return [item["embedding"] for item in self.answer(**fields)["data"]]
        choice = self.answer(**fields)["choices"][0]
        text: str = choice["text"] if self.path == COMPLETIONS else choice["message"]["content"]
        return text

    def chunks(self, **fields: Any) -> list[dict[str, Any]]:
        response = self.post(stream=True, **fields)
        assert response.status_code == 200, response.text
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def calls(self, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
        """The calls of a chat's answer: names and arguments."""
        choice = self.answer(**fields)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        functions = [call["function"] for call in choice["message"]["tool_calls"]]
        return [(function["name"], json.loads(function["arguments"])) for function in functions]

    def prompt(self) -> str:
        """The prompt that the engine got last."""
        return bytes(token for token in self.engine.seen[-1].prompt if token < 256).decode()


Proof = Callable[[Probe], None]


@dataclass(frozen=True, kw_only=True)
class Line:
    """How a field is proved. ``proof`` None: nothing but its neutral values is taken."""

    proof: Proof | None
    refused: tuple[Any, ...]
    neutral: tuple[Any, ...] = ()


def reaches(name: str, value: Any, *, field: str | None = None, expected: Any = None) -> Proof:
    """The engine's sampling parameter ``name`` is what the field says."""

    def proof(probe: Probe) -> None:
        probe.answer(**{field or name: value})
        got = getattr(probe.engine.seen[-1].sampling, name)
        assert got == (value if expected is None else expected)

    return proof


def _model(probe: Probe) -> None:
    assert probe.answer(model="toy:poet")["model"] == "toy:poet"
    assert probe.engine.seen[-1].adapter == "toy:poet"
    assert probe.post(model="another").status_code == 404


def _n(probe: Probe) -> None:
    assert [choice["index"] for choice in probe.answer(n=3, temperature=1)["choices"]] == [0, 1, 2]


def _seed(probe: Probe) -> None:
    assert probe.text(seed=7, temperature=1) == probe.text(seed=7, temperature=1) != probe.text(seed=8, temperature=1)


def _stop(probe: Probe) -> None:
    whole = probe.text()
    assert probe.text(stop=whole[1:3]) == probe.text(stop=["~", whole[1:3]]) == whole[:1]


def _kept_stop(probe: Probe) -> None:
    whole = probe.text()
    assert probe.text(stop=whole[1:3], include_stop_str_in_output=True) == whole[:3]


def _stream(probe: Probe) -> None:
    chunks = probe.chunks()
    texts = [
        choice.get("text") or choice.get("delta", {}).get("content") or "" for c in chunks for choice in c["choices"]
    ]
    assert "".join(texts) == probe.text()
    assert len(chunks) >= 4


def _stream_options(probe: Probe) -> None:
    *others, last = probe.chunks(stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in others)


def _user(probe: Probe) -> None:
    assert probe.text(user="someone") == probe.text()


def _priority(probe: Probe) -> None:
    probe.answer(priority=-3)
    assert probe.engine.seen[-1].priority == -3


def _special(probe: Probe) -> None:
    end = {"logit_bias": {"256": 100}, "ignore_eos": True, "max_tokens": 1}
    assert probe.text(**end, skip_special_tokens=False) == "<|endoftext|>"
    assert probe.text(**end) == ""


def _prompt(probe: Probe) -> None:
    probe.answer(prompt="ab")
    assert probe.engine.seen[-1].prompt == (97, 98)
    probe.answer(prompt=[97, 98, 99])
    assert probe.engine.seen[-1].prompt == (97, 98, 99)
    assert len(probe.answer(prompt=["a", "b"])["choices"]) == 2
    assert len(probe.answer(prompt=[[97], [98], [99]])["choices"]) == 3


def _logprobs(probe: Probe) -> None:
    found = probe.answer(logprobs=2)["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == probe.text()
    assert all(len(top) == 2 for top in found["top_logprobs"])


def _echo(probe: Probe) -> None:
    choice = probe.answer(echo=True, logprobs=1)["choices"][0]
    assert choice["text"] == "hello" + probe.text()
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert probe.text(echo=True, max_tokens=0) == "hello"


def _best_of(probe: Probe) -> None:
    assert len(probe.answer(best_of=2, n=2)["choices"]) == 2


def _add_special_tokens(probe: Probe) -> None:
    probe.answer(add_special_tokens=False)
    assert probe.prompt() == "hello"


def _messages(probe: Probe) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    probe.answer(messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": parts}])
    assert probe.prompt() == "<system>be kind<user>one\ntwo<assistant>"


def _chat_logprobs(probe: Probe) -> None:
    found = probe.answer(logprobs=True)["choices"][0]["logprobs"]["content"]
    assert "".join(item["token"] for item in found) == probe.text()


def _top_logprobs(probe: Probe) -> None:
    found = probe.answer(logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert all(len(item["top_logprobs"]) == 3 for item in found)


def _format(probe: Probe) -> None:
    assert probe.text(response_format={"type": "text"}) == probe.text()
    assert probe.text(response_format={"type": "json_object"}) == "{}"
    assert probe.text(response_format={"type": "regex", "regex": "a0"}) == "a0"
    assert probe.text(response_format={"type": "grammar", "grammar": 'start: "yes"'}) == "yes"


NUMBER = {"n": {"type": "integer"}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOL, OTHER = tool("now"), tool("later", parameters={"type": "object", "required": ["n"], "properties": NUMBER})


def _tools(probe: Probe) -> None:
    probe.answer(tools=[TOOL])
    assert '"name": "now"' in probe.prompt()
    assert probe.engine.seen[-1].grammar is None
    probe.answer(tools=[tool("now", strict=True)])
    assert probe.engine.seen[-1].grammar is not None


def _tool_choice(probe: Probe) -> None:
    both = {"tools": [TOOL, OTHER], "max_tokens": 200}
    probe.answer(**both, tool_choice="none")
    assert "now" not in probe.prompt()
    probe.answer(**both, tool_choice="auto")
    assert "now" in probe.prompt()
    assert probe.calls(**both, tool_choice="required") == [("later", {"n": 0})]
    named = {"type": "function", "function": {"name": "later"}}
    assert probe.calls(**both, tool_choice=named) == [("later", {"n": 0})]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    assert probe.calls(**both, tool_choice=allowed) == [("later", {"n": 0})]


def _parallel(probe: Probe) -> None:
    assert probe.text(tools=[TOOL], parallel_tool_calls=True)
    body = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    assert len(probe.calls(**body, parallel_tool_calls=False)) == 1


def _completion_limit(probe: Probe) -> None:
    probe.answer(max_completion_tokens=3)
    assert probe.engine.seen[-1].sampling.max_tokens == 3


def _no_header(probe: Probe) -> None:
    probe.answer(add_generation_prompt=False)
    assert probe.prompt() == "<user>hello"


def _continued(probe: Probe) -> None:
    probe.answer(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}], continue_final_message=True
    )
    assert probe.prompt() == "<user>hi<assistant>I"


def _template_variables(probe: Probe) -> None:
    probe.answer(chat_template_kwargs={"enable_thinking": False})
    assert probe.prompt().endswith("False<assistant>")


def _effort(probe: Probe) -> None:
    probe.answer(reasoning_effort="high")
    assert "effort: high" in probe.prompt()


def _documents(probe: Probe) -> None:
    probe.answer(documents=[{"text": "a fact"}])
    assert "a fact" in probe.prompt()


def _any_model(probe: Probe) -> None:
    assert probe.answer(model="toy:poet")["model"] == "toy:poet"
    assert probe.post(model="another").status_code == 404


def _input(probe: Probe) -> None:
    assert probe.text(input="hi") == probe.text(input=["hi"]) == probe.text(input=list(b"hi"))
    assert probe.text(input=["hi", "a"]) == probe.text(input=[list(b"hi"), list(b"a")])


def _encoding(probe: Probe) -> None:
    numbers = probe.text(encoding_format="float")[0]
    data = base64.b64decode(probe.text(encoding_format="base64")[0])
    assert list(struct.unpack(f"<{len(numbers)}f", data)) == numbers


def _dimensions(probe: Probe) -> None:
    assert probe.text(dimensions=4) == probe.text()


_SAMPLING: Mapping[str, Line] = {
    "model": Line(proof=_model, refused=(None, 1)),
    "temperature": Line(proof=reaches("temperature", 0.7), refused=(-1, 3, "a")),
    "top_p": Line(proof=reaches("top_p", 0.9), refused=(0, 1.1, "a")),
    "n": Line(proof=_n, refused=(0, -1, 1.5, 1000)),
    "seed": Line(proof=_seed, refused=("a", 1.5, 2**70)),
    "stop": Line(proof=_stop, refused=([], [""], "", list("abcde"), 5)),
    "frequency_penalty": Line(proof=reaches("frequency_penalty", 0.5), refused=(-2.1, 2.1)),
    "presence_penalty": Line(proof=reaches("presence_penalty", -0.5), refused=(-2.1, 2.1)),
    "logit_bias": Line(
        proof=reaches("logit_bias", {"5": 1.5}, expected={5: 1.5}),
        refused=({"-1": 1}, {"999999": 1}, {"5": 101}, {"abc": 1}, {"5": "1"}),
    ),
    "stream": Line(proof=_stream, refused=("yes", 1)),
    "stream_options": Line(proof=_stream_options, refused=({"include_usage": True}, {"include_obfuscation": True})),
    "user": Line(proof=_user, refused=(5,)),
    "top_k": Line(proof=reaches("top_k", 7), refused=(-2, 1.5)),
    "min_p": Line(proof=reaches("min_p", 0.1), refused=(-0.1, 1.1)),
    "repetition_penalty": Line(proof=reaches("repetition_penalty", 1.2), refused=(0, -1)),
    "min_tokens": Line(proof=reaches("min_tokens", 2), refused=(-1, 1000)),
    "ignore_eos": Line(proof=reaches("ignore_eos", True), refused=(1,)),
    "stop_token_ids": Line(
        proof=reaches("stop_ids", [5], field="stop_token_ids", expected=(5,)), refused=([999], [-1], 5)
    ),
    "include_stop_str_in_output": Line(proof=_kept_stop, refused=(1,)),
    "skip_special_tokens": Line(proof=_special, refused=(0,)),
    "priority": Line(proof=_priority, refused=(1.5, 2**40)),
}

LINES: Mapping[str, Mapping[str, Line]] = {
    COMPLETIONS: {
        **_SAMPLING,
        "prompt": Line(proof=_prompt, refused=([], None, [1, "a"], [[]], [999], {"a": 1}, [-1])),
        "max_tokens": Line(proof=reaches("max_tokens", 7), refused=(0, -5, 10**9, 1.5)),
        "logprobs": Line(proof=_logprobs, refused=(-1, 99, True)),
        "echo": Line(proof=_echo, refused=(1,)),
        "best_of": Line(proof=_best_of, refused=(0, 3)),
        "suffix": Line(proof=None, refused=("end",), neutral=("",)),
        "add_special_tokens": Line(proof=_add_special_tokens, refused=(1,)),
    },
    CHAT: {
        **_SAMPLING,
        "messages": Line(
            proof=_messages,
            refused=(
                [],
                [{"role": "x", "content": "a"}],
                [{"role": "user", "content": 5}],
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                [{"role": "user", "content": "a", "further": 1}],
                [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}],
            ),
        ),
        "max_completion_tokens": Line(proof=_completion_limit, refused=(0, 10**9)),
        "max_tokens": Line(proof=reaches("max_tokens", 7), refused=(0, -5, 10**9)),
        "logprobs": Line(proof=_chat_logprobs, refused=(1,)),
        "top_logprobs": Line(proof=_top_logprobs, refused=(99, 1)),
        "response_format": Line(
            proof=_format, refused=({"type": "xml"}, {"type": "regex"}, {"type": "regex", "regex": "("})
        ),
        "tools": Line(proof=_tools, refused=([{"type": "custom"}], 5)),
        "tool_choice": Line(
            proof=_tool_choice, refused=("required", "any", {"type": "function"}, {"type": "custom"}, {"type": []}, 5)
        ),
        "parallel_tool_calls": Line(proof=_parallel, refused=(True, 1)),
        "reasoning_effort": Line(proof=_effort, refused=("huge", 1)),
        "service_tier": Line(proof=None, refused=("flex", "priority"), neutral=("auto", "default")),
        "store": Line(proof=None, refused=(True,), neutral=(False,)),
        "modalities": Line(proof=None, refused=(["text", "audio"],), neutral=(["text"],)),
        "safety_identifier": Line(proof=_user, refused=(5,)),
        "prompt_cache_key": Line(proof=None, refused=(5,), neutral=("key",)),
        "audio": Line(proof=None, refused=({"voice": "alloy", "format": "wav"},)),
        "function_call": Line(proof=None, refused=("auto",), neutral=("none",)),
        "functions": Line(proof=None, refused=([{"name": "now"}],)),
        "metadata": Line(proof=None, refused=({"a": "b"},), neutral=({},)),
        "moderation": Line(proof=None, refused=({"model": "x"},)),
        "prediction": Line(proof=None, refused=({"type": "content", "content": "x"},)),
        "prompt_cache_options": Line(proof=None, refused=({"mode": "x"},)),
        "prompt_cache_retention": Line(proof=None, refused=("24h",), neutral=("in_memory",)),
        "verbosity": Line(proof=None, refused=("low", "high"), neutral=("medium",)),
        "web_search_options": Line(proof=None, refused=({},)),
        "add_generation_prompt": Line(proof=_no_header, refused=(1,)),
        "continue_final_message": Line(proof=_continued, refused=(1,)),
        "chat_template_kwargs": Line(proof=_template_variables, refused=(5, {"no_such_variable": 1}, {"messages": []})),
        "documents": Line(proof=_documents, refused=(5,)),
    },
    EMBEDDINGS: {
        "model": Line(proof=_any_model, refused=(None, 1)),
        "input": Line(
            proof=_input, refused=([], "", [""], None, [1, "a"], [[]], [999], [-1], "x" * 2000, ["a"] * 2049)
        ),
        "encoding_format": Line(proof=_encoding, refused=("hex", 1)),
        "dimensions": Line(proof=_dimensions, refused=(0, 2, 8, 1.5)),
        "user": Line(proof=_user, refused=(5,)),
    },
}


def table() -> str:
    """The table of all fields, in Markdown."""
    parts = []
    for path, lines in LINES.items():
        parts += [f"### `POST {path}`", "", "| field | what it does | refused in the tests |", "| --- | --- | --- |"]
        for name, info in BODIES[path].model_fields.items():
            refused = ", ".join(f"`{_shown(value)}`" for value in lines[name].refused)
            parts.append(f"| `{name}` | {info.description} | {refused} |")
        parts.append("")
    return "\n".join(parts)


def written(document: str) -> str:
    """A document with the table in its place."""
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n{END}{tail}"


def _shown(value: Any) -> str:
    text = json.dumps(value).replace("|", "\\|")
    return text if len(text) <= 60 else text[:57] + "…"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
