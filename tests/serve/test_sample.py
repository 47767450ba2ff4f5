"""Tokens to text: characters whole, log probabilities beside the text they belong to, ends where they are."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.engine.request import FinishReason, Output, TokenLogprobs
from tpuctl.serve.sample import Delta, Sample, TextOptions
from tpuctl.text import ByteTokenizer

EOS = 256


def run(
    tokens: bytes | list[int],
    *,
    options: TextOptions | None = None,
    prompt: bytes = b"",
    end: FinishReason = "length",
    stop_id: int | None = None,
    at_once: int = 1,
) -> list[Delta]:
    sample = Sample(tokenizer=ByteTokenizer(), prompt=tuple(prompt), options=options or TextOptions())
    ids = list(tokens)
    deltas = []
    for position in range(0, len(ids), at_once):
        few = tuple(ids[position : position + at_once])
        last = position + at_once >= len(ids)
        output = Output(
            request_id="r",
            token_ids=few,
            logprobs=tuple(TokenLogprobs(token=token, logprob=-1.0, rank=1) for token in few),
            finish_reason=end if last else None,
            stop_id=stop_id if last else None,
        )
        deltas.append(sample.add(output))
        if sample.finished:
            break
    return deltas


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def told(deltas: list[Delta]) -> bytes:
    return bytes(item.token for delta in deltas for item in delta.logprobs if item.token < EOS)


def test_characters_of_several_tokens_come_whole() -> None:
    said = "naïve 🙂 你好 ž"
    deltas = run(said.encode())
    assert text(deltas) == said
    assert all("\ufffd" not in delta.text for delta in deltas)


def test_character_cut_off_at_the_end_is_one_replacement() -> None:
    assert text(run("🙂".encode()[:2])) == "\ufffd"


def test_invalid_byte_is_replaced_where_it_stands() -> None:
    assert text(run(b"a\xffb")) == "a\ufffdb"


def test_prompt_that_ends_within_a_character_leaves_its_rest_to_the_answer() -> None:
    emoji = "🙂".encode()
    assert text(run(emoji[2:] + b"!", prompt=b"abc " + emoji[:2])) == "🙂!"


@pytest.mark.parametrize("stop", ["lo w", "o", "d", "hello world", "w"])
def test_log_probabilities_join_to_the_text_before_a_stop(stop: str) -> None:
    deltas = run(b"hello world", options=TextOptions(stops=(stop,)))
    assert text(deltas) == "hello world".partition(stop)[0]
    assert told(deltas).decode() == text(deltas)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)


@pytest.mark.parametrize("stop", ["lo w", "o", "d", "ž w", "nowhere"])
def test_tokens_that_come_several_at_once_say_what_they_say_one_by_one(stop: str) -> None:
    said = [*"hello ž world".encode(), EOS]
    for least in (0, 7):
        asked: dict[str, Any] = {"options": TextOptions(stops=(stop,), min_tokens=least), "end": "stop", "stop_id": EOS}
        wanted = run(said, **asked)
        for at_once in (2, 3, 5, 20):
            found = run(said, **asked, at_once=at_once)
            assert (text(found), told(found)) == (text(wanted), told(wanted))
            assert found[-1].stop_reason == wanted[-1].stop_reason


def test_every_delta_has_the_log_probabilities_of_its_own_text() -> None:
    for delta in run("aé🙂b你".encode(), options=TextOptions(stops=("🙂b!",))):
        assert bytes(item.token for item in delta.logprobs).decode() == delta.text


def test_end_of_text_is_no_text_and_has_no_log_probability() -> None:
    deltas = run([104, 105, EOS], end="stop", stop_id=EOS)
    assert text(deltas) == "hi"
    assert told(deltas) == b"hi"
    assert deltas[-1].stop_reason == EOS


def test_stop_strings_do_not_count_before_the_least_number_of_tokens() -> None:
    assert text(run(b"ababab", options=TextOptions(stops=("ab",), min_tokens=3))) == "ab"


def test_text_held_back_for_a_stop_is_shown_at_the_end() -> None:
    deltas = run(b"hel", options=TextOptions(stops=("help",)))
    assert text(deltas) == "hel"
    assert deltas[-1].finish_reason == "length"
