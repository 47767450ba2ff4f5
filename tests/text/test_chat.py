"""Conversations to ids, and which of them are answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.text.template_cases import CASES, REFERENCE, SPECIAL, backend, templates
from tpuctl.errors import DataError
from tpuctl.text import ByteTokenizer, SpecialTokens, load_tokenizer
from tpuctl.text.chat import Chat, load_chat
from tpuctl.text.file import FileTokenizer
from tpuctl.text.template import ChatTemplate, ChatTemplateError, Conversation

WHOLE = Conversation(messages=CASES["whole"]["messages"])
TURNS = Conversation(
    messages=[
        {"role": "user", "content": "1st"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2nd"},
        {"role": "assistant", "content": "two"},
    ]
)


def tokenizer(end: str) -> FileTokenizer:
    """Bytes, and the marks of the templates as special tokens, of which ``end`` ends an answer."""
    made = backend()
    made.add_special_tokens(["<|begin|>", "<|end|>"])
    names = {key: value for key, value in SPECIAL.items() if made.token_to_id(value) is not None}
    number = made.token_to_id(end)
    special = SpecialTokens(names=names, bos_id=made.token_to_id("<s>"), eos_ids=(number,), pad_id=None)
    return FileTokenizer(made, special=special, separator_id=number)


def chat(name: str, *, end: str = "<|end|>") -> Chat:
    return Chat(ChatTemplate(templates()[name], special_tokens=SPECIAL), tokenizer=tokenizer(end))


def answers(chat: Chat, conversation: Conversation) -> list[str]:
    encoded = chat.encode(conversation)
    edges = np.flatnonzero(np.diff(encoded.is_answer, prepend=False, append=False))
    pieces = [encoded.ids[start:stop].tolist() for start, stop in edges.reshape(-1, 2)]
    detokenizers = [chat.tokenizer.detokenizer(keep_special=True) for _ in pieces]
    return [each.add(ids) for each, ids in zip(detokenizers, pieces, strict=True)]


def test_chat_marks_generation_blocks_as_transformers_does() -> None:
    expected = json.loads(REFERENCE.read_text(encoding="utf-8"))["encoded"]
    encoded = chat("marked", end="</s>").encode(WHOLE)
    assert encoded.ids.tolist() == expected["ids"]
    assert encoded.is_answer.astype(int).tolist() == expected["is_answer"]


@pytest.mark.parametrize(
    ("name", "end", "expected"),
    [
        ("turns", "<|end|>", ["one<|end|>", "two<|end|>"]),
        ("turns", "</s>", ["one<|end|>\n", "two<|end|>\n"]),
        ("marked", "</s>", ["one</s>", "two</s>"]),
        ("strict", "</s>", [" one</s>", " two</s>"]),
        # An answer reads differently once another follows it: its thought is taken out.
        ("thoughts", "<|end|>", ["one<|end|>", "<think>\n\n</think>\n\ntwo<|end|>"]),
    ],
)
def test_chat_answers_are_what_the_model_would_have_to_write(name: str, end: str, expected: list[str]) -> None:
    assert answers(chat(name, end=end), TURNS) == expected


def test_chat_refuses_answers_that_it_can_not_tell_apart() -> None:
    with pytest.raises(ChatTemplateError, match="message 1 differently"):
        chat("thoughts", end="</s>").encode(TURNS)
    with pytest.raises(ChatTemplateError, match="begins with an answer"):
        chat("turns").encode(Conversation(messages=TURNS.messages[1:]))


def test_chat_answer_after_a_prompt_that_opens_a_thought_begins_where_the_two_part() -> None:
    source = templates()["turns"].replace("assistant\n' -}}", "assistant\n<think>\n' -}}")
    opened = Chat(ChatTemplate(source, special_tokens=SPECIAL), tokenizer=tokenizer("<|end|>"))
    assert opened.template.render(TURNS, add_generation_prompt=True).text.endswith("assistant\n<think>\n")
    assert answers(opened, TURNS) == ["one<|end|>", "two<|end|>"]


def test_chat_bytes_are_those_of_the_text_without_its_marks() -> None:
    encoded = chat("turns").encode(TURNS)
    assert encoded.num_bytes[encoded.is_answer].sum() == len("one" + "two")


def test_chat_prompt_is_the_text_parsed_with_nothing_around() -> None:
    strict = chat("strict", end="</s>")
    ids = strict.prompt(Conversation(messages=TURNS.messages[:1])).tolist()
    assert ids[0] == strict.tokenizer.special.bos_id
    assert ids.count(ids[0]) == 1
    assert strict.tokenizer.decode(ids) == "[ASK] 1st [/ASK]"
    assert strict.tokenizer.special.bos_id not in chat("turns").prompt(TURNS)


def test_chat_prompt_that_is_continued_ends_within_the_last_message() -> None:
    ids = chat("turns").prompt(TURNS, continue_final_message=True)
    assert chat("turns").tokenizer.decode(ids.tolist()).endswith("assistant\ntwo")


def test_load_chat_takes_the_given_template_before_the_folders(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("folder's")
    asked: Any = Conversation(messages=[{"role": "user", "content": "x"}])
    assert load_chat(ByteTokenizer(), folder=tmp_path).template.render(asked).text == "folder's"
    own = load_chat(ByteTokenizer(), folder=tmp_path, source="own")
    assert own.template.render(asked).text == "own"


def test_load_chat_renders_with_the_template_for_tools_where_there_are_tools(tmp_path: Path) -> None:
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "tool_use.jinja").write_text("tools: {{ tools | length }}")
    (tmp_path / "chat_template.jinja").write_text("plain")
    both = load_chat(ByteTokenizer(), folder=tmp_path)
    asked = [{"role": "user", "content": "x"}]
    assert both.tokenizer.decode(both.prompt(Conversation(messages=asked)).tolist()) == "plain"
    assert both.tokenizer.decode(both.prompt(Conversation(messages=asked, tools=[{}])).tolist()) == "tools: 1"


def test_load_chat_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(DataError, match="no chat template"):
            load_chat(ByteTokenizer(), folder=folder)


def test_load_chat_of_a_folder_as_transformers_writes_it(tmp_path: Path) -> None:
    backend().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": templates()["marked"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=300)
    expected = json.loads(REFERENCE.read_text(encoding="utf-8"))["encoded"]
    assert load_chat(loaded, folder=tmp_path).encode(WHOLE).ids.tolist() == expected["ids"]
