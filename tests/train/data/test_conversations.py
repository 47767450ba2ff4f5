"""Conversations as training data: read in each of their forms, whole in a row, the loss where it belongs."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.fakes.tiny_training import DATA, TRAIN
from tests.train.data.parquet_folders import assert_equal, rows_of, take, take_all, write_table
from tpuctl.errors import DataError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.text.place import TokenizerRef
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import iter_texts, open_corpus
from tpuctl.train.data.documents import FAULTS
from tpuctl.train.data.stream import (
    Stream,
    eval_stream,
    prepare_tokenizer,
    read_stream,
    require_document,
    train_stream,
)

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
END = 256
STRUCT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())]))
RULES = ChatPlan(
    messages_column="messages",
    prompt_column=None,
    answer_column=None,
    template="to be set",
    loss_on="answers",
    too_long="truncate",
    bad_rows="skip",
)


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def stream_of(folder: Path, columns: dict[str, Any], **changes: Any) -> Stream:
    """A stream over one file of conversations; ``changes`` are of the rules, or ``length``, ``lanes``, ``epochs``."""
    (folder / "template.jinja").write_text(TEMPLATE)
    write_table(folder / "data" / "a.parquet", columns)
    sizes = {"length": 32, "lanes": 1, "epochs": 1, "shuffle": False} | changes
    rules = replace(RULES, template=str(folder / "template.jinja"))
    rules = replace(rules, **{key: value for key, value in changes.items() if key in ChatPlan.__slots__})
    data = replace(DATA, chat=rules, shuffle=sizes["shuffle"], epochs=sizes["epochs"])
    train = replace(TRAIN, sequence_length=sizes["length"], global_batch=sizes["lanes"])
    corpus = open_corpus(str(folder / "data"), columns=Columns.of(data))
    ref = TokenizerRef(name="bytes", directory=str(folder), vocab_size=257)
    return train_stream(data, train, corpus=corpus, tokenizer=ref)


def messages(*rows: Any) -> dict[str, Any]:
    return {"messages": pa.array(rows, STRUCT)}


def learned(batch: HostBatch, row: int = 0) -> str:
    """What counts of a row, ends written as ``|``."""
    ids = batch.targets[row][batch.loss_mask[row] == 1].tolist()
    return "".join("|" if i == END else chr(i) for i in ids)


def shown(batch: HostBatch, row: int = 0) -> list[str]:
    """The conversations that a row shows, as far as they are targets."""
    numbers = range(1, int(batch.segment_ids[row].max()) + 1)
    pieces = [batch.targets[row][batch.segment_ids[row] == number].tolist() for number in numbers]
    return ["".join("|" if i == END else chr(i) for i in piece) for piece in pieces]


def faults(stream: Stream, steps: int = 4) -> dict[str, int]:
    pieces = read_stream(stream, lanes=range(stream.lanes), cursor=np.zeros((stream.lanes, 4), np.int32))
    *_, last = (next(pieces) for _ in range(steps))
    return {name: number for name, number in zip(FAULTS, last.faults.tolist(), strict=True) if number}


def test_conversations_are_learned_by_their_answers(tmp_path: Path) -> None:
    (batch,) = take_all(stream_of(tmp_path, messages(turns("hi", "yes", "so", "no"))))
    assert shown(batch) == [":hi|a:yes|u:so|a:no|"]
    assert learned(batch) == "yes|no|"
    assert batch.num_bytes.tolist() == [len("yes" + "no")]


def test_conversations_are_learned_whole_where_the_recipe_says_all(tmp_path: Path) -> None:
    (batch,) = take_all(stream_of(tmp_path, messages(turns("hi", "yes")), loss_on="all"))
    assert learned(batch) == ":hi|a:yes|"
    assert batch.num_bytes.tolist() == [len(":hi" + "a:yes")]


def test_conversations_without_a_question_can_be_learned_whole(tmp_path: Path) -> None:
    begins_with_answer = [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "hi"}]
    (batch,) = take_all(stream_of(tmp_path, messages(begins_with_answer), loss_on="all"))
    assert learned(batch) == ":hello|u:hi|"


@pytest.mark.parametrize(
    ("columns", "rules"),
    [
        (messages(turns("hi", "yes")), {}),
        ({"messages": pa.array([json.dumps(turns("hi", "yes"))])}, {}),
        ({"messages": pa.array([json.dumps(turns("hi", "yes"))], pa.large_string())}, {}),
        ({"messages": pa.array([turns("hi", "yes")], pa.large_list(STRUCT.value_type))}, {}),
        ({"chat": pa.array([turns("hi", "yes")], STRUCT)}, {"messages_column": "chat"}),
        (
            {"q": pa.array(["hi"]), "a": pa.array(["yes"])},
            {"messages_column": None, "prompt_column": "q", "answer_column": "a"},
        ),
    ],
    ids=["structs", "JSON", "large JSON", "large list", "another name", "pair"],
)
def test_conversations_in_every_form_are_the_same(tmp_path: Path, columns: dict[str, Any], rules: Any) -> None:
    (batch,) = take_all(stream_of(tmp_path, columns, **rules))
    assert shown(batch) == [":hi|a:yes|"]
    assert learned(batch) == "yes|"


def test_conversations_stay_whole_where_they_fit_into_a_row(tmp_path: Path) -> None:
    rows = [turns("a" * size, "b" * size) for size in (3, 7, 4, 10, 2)]
    batches = take_all(stream_of(tmp_path, messages(*rows), length=30))
    found = [text for batch in batches for text in shown(batch)]
    assert found == [f":{'a' * size}|a:{'b' * size}|" for size in (3, 7, 4, 10, 2)]
    assert [len(shown(batch)) for batch in batches] == [2, 1, 1, 1]
    for batch in batches:
        places = batch.segment_ids[0] > 0
        starts = np.flatnonzero(batch.positions[0][places] == 0)
        assert len(starts) == batch.segment_ids[0].max()


def test_conversations_longer_than_a_row_are_cut_dropped_or_refused(tmp_path: Path) -> None:
    rows = messages(turns("hi", "b" * 100), turns("q" * 100, "no"), turns("hi", "yes"))
    cut = stream_of(tmp_path, rows, length=16)
    assert [learned(batch) for batch in take_all(cut)] == ["b" * (16 - len(":hi|a:")), "yes|"]
    assert faults(cut) == {"cut": 1, "too long": 1}
    dropped = stream_of(tmp_path, rows, length=16, too_long="drop")
    assert [learned(batch) for batch in take_all(dropped)] == ["yes|"]
    assert faults(dropped) == {"too long": 2}
    refused = stream_of(tmp_path, rows, length=16, too_long="raise")
    with pytest.raises(DataError, match=r"a\.parquet: row group 0, row 0: a conversation of 107 tokens") as caught:
        take_all(refused)
    assert "train.sequence_length" in (caught.value.hint or "")


BAD = [
    (None, "empty"),
    ("", "empty"),
    ("[]", "empty"),
    ("{", "malformed"),
    ("5", "malformed"),
    ('{"role": "user"}', "malformed"),
    ('["hi"]', "malformed"),
    ('[{"from": "human", "value": "hi"}]', "malformed"),
    ('[{"role": "usr", "content": "hi"}]', "malformed"),
    ('[{"role": "user", "content": 5}, {"role": "assistant", "content": "x"}]', "malformed"),
    ('[{"role": "user", "content": null}, {"role": "assistant", "content": "x"}]', "malformed"),
    ('[{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]', "malformed"),
    ('[{"role": "user", "content": "x"}]', "unanswered"),
    ('[{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]', "unanswered"),
    ('[{"role": "assistant", "content": "x"}]', "unrendered"),
    ('[{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "x"}]', "unrendered"),
    ("[" * 100_000, "malformed"),
    ('[{"role": "system"}, {"role": "assistant", "content": [{"type": "image"}]}]', "unrendered"),
]


@pytest.mark.parametrize(("row", "fault"), BAD)
def test_conversation_that_is_none_is_skipped_and_counted_by_what_is_wrong(
    tmp_path: Path, row: str | None, fault: str
) -> None:
    good = json.dumps(turns("hi", "yes"))
    stream = stream_of(tmp_path, {"messages": pa.array([row, good], pa.string())})
    assert [learned(batch) for batch in take_all(stream)] == ["yes|"]
    assert faults(stream) == {fault: 1}


@pytest.mark.parametrize(("row", "fault"), [bad for bad in BAD if bad[1] != "empty"])
def test_conversation_that_is_none_ends_the_run_where_the_recipe_says_so(tmp_path: Path, row: str, fault: str) -> None:
    good = json.dumps(turns("hi", "yes"))
    stream = stream_of(tmp_path, {"messages": pa.array([good, row])}, bad_rows="raise")
    with pytest.raises(DataError, match=r"a\.parquet: row group 0, row 1: ") as caught:
        take_all(stream)
    assert "data.bad_rows" in (caught.value.hint or "")


def test_conversations_that_are_skipped_are_told_with_the_first_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [json.dumps(turns("hi", "yes")), "{", "{"]
    with caplog.at_level(logging.WARNING):
        take_all(stream_of(tmp_path, {"messages": pa.array(rows)}))
    told = [record.getMessage() for record in caplog.records]
    assert any("row group 0, row 1: not JSON" in text for text in told)
    assert any("2 rows that are no conversation skipped so far" in text for text in told)


def test_conversations_with_a_template_that_is_not_there_name_it(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, messages(turns("hi", "yes")))
    (tmp_path / "template.jinja").unlink()
    with pytest.raises(DataError, match=r"no chat template at .*template\.jinja"):
        take(stream, 1)


def test_conversations_take_the_template_of_the_tokenizers_folder(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, messages(turns("hi", "yes")))
    ref = TokenizerRef(name="bpe:257", directory=str(tmp_path / "run"), vocab_size=257)
    prepare_tokenizer(ref, corpus=stream.corpus)
    (tmp_path / "run" / "chat_template.jinja").write_text(TEMPLATE)
    assert stream.chat is not None
    own = replace(stream, tokenizer=ref, chat=replace(stream.chat, template=None))
    (batch,) = take_all(own)
    assert batch.loss_mask.sum() == len("yes") + 1


def test_conversations_of_which_none_can_be_learned_are_refused_at_once(tmp_path: Path) -> None:
    rows = {"messages": pa.array(["{", '[{"role": "user", "content": "x"}]'])}
    with pytest.raises(DataError, match=r"no conversation in it can be learned from.*row 0: not JSON"):
        require_document(stream_of(tmp_path, rows, epochs=0))
    with pytest.raises(DataError, match="a conversation of 18 tokens"):
        require_document(stream_of(tmp_path, messages(turns("q" * 10, "yes")), length=8, epochs=0))
    require_document(stream_of(tmp_path, messages(turns("hi", "yes"))))


def many(count: int) -> list[list[dict[str, str]]]:
    return [
        turns(*[f"{row}." + "x" * ((row * 7 + turn) % 9) for turn in range(2 + 2 * (row % 2))]) for row in range(count)
    ]


@pytest.mark.parametrize("at", [1, 2, 5])
def test_conversations_resumed_at_any_step_go_on_as_if_unbroken(tmp_path: Path, at: int) -> None:
    stream = stream_of(tmp_path, messages(*many(23)), lanes=3, epochs=0, shuffle=True)
    unbroken = take(stream, 9)
    for found, expected in zip(take(stream, 9 - at, cursor=unbroken[at - 1].cursor), unbroken[at:], strict=True):
        assert_equal(found, expected)


def test_conversations_on_other_hosts_are_the_same(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, messages(*many(23)), lanes=4, epochs=0, shuffle=True)
    whole = take(stream, 6)
    for rows in ([0, 1], [2, 3], [3]):
        for found, expected in zip(take(stream, 6, rows=rows), whole, strict=True):
            assert_equal(found, rows_of(expected, rows))


def test_conversations_of_an_epoch_are_each_learned_once(tmp_path: Path) -> None:
    rows = many(23)
    batches = take_all(stream_of(tmp_path, messages(*rows), lanes=4, shuffle=True, length=64))
    found = sorted(text for batch in batches for row in range(4) for text in shown(batch, row))
    assert found == sorted("".join(f"{m['role'][0]}:{m['content']}|" for m in row)[1:] for row in rows)


def test_conversations_held_out_are_read_by_the_same_rules(tmp_path: Path) -> None:
    train = stream_of(tmp_path, messages(turns("hi", "yes")))
    assert train.chat is not None
    held_out = eval_stream(
        replace(DATA, chat=train.chat), replace(TRAIN, global_batch=1), corpus=train.corpus, tokenizer=train.tokenizer
    )
    assert held_out.chat == train.chat
    assert learned(take_all(replace(held_out, sequence_length=32))[0]) == "yes|"


def test_conversations_give_a_tokenizer_what_is_said_in_them(tmp_path: Path) -> None:
    rows = [json.dumps(turns("hello there", "hello you")), json.dumps(turns("again", "hello")), "{", "5", '["\\ud83d"]']
    rows.append(json.dumps(turns("half", "a \ud83d")))
    stream = stream_of(tmp_path, {"messages": pa.array(rows)})
    assert list(iter_texts(stream.corpus)) == ["hello there", "hello you", "again", "hello", "half", "a "]
    prepare_tokenizer(TokenizerRef(name="bpe:270", directory=str(tmp_path), vocab_size=384), corpus=stream.corpus)
    assert "role" not in (tmp_path / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"other": pa.array(["x"])}, "no column 'messages'"),
        ({"messages": pa.array([1])}, "column 'messages' is int64, expected a list of structs"),
        ({"messages": pa.array([["x"]])}, "is list<"),
        ({"messages": pa.array([None], pa.null())}, "null or empty in all of them"),
        (
            {"messages": pa.array([[{"role": "user", "content": b"x"}]])},
            "a message can't be written as JSON",
        ),
    ],
)
def test_conversations_in_a_column_of_another_kind_name_file_and_column(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        stream_of(tmp_path, columns)
    assert "messages" in str(caught.value)


def test_conversations_in_files_of_both_forms_are_read_together(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, messages(turns("hi", "yes")))
    write_table(tmp_path / "data" / "b.parquet", {"messages": pa.array([json.dumps(turns("so", "no"))])})
    corpus = open_corpus(str(tmp_path / "data"), columns=stream.corpus.columns)
    assert texts_of(take_all(replace(stream, corpus=corpus))) == ["yes|no|"]


def texts_of(batches: Sequence[HostBatch]) -> list[str]:
    return [learned(batch) for batch in batches]
