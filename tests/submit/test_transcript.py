from __future__ import annotations

import random

import pytest

from tpuctl.submit.transcript import (
    LineEnds,
    Placement,
    StreamView,
    Transcript,
    start_of_last_lines,
    unify_line_ends,
)


@pytest.mark.parametrize("seed", range(200))
def test_transcript_of_streams_from_anywhere_gives_every_line_once(seed: int) -> None:
    """Streams begin anywhere at a line, come in pieces and end early; some logs are one line over and over."""
    rng = random.Random(seed)
    words = ["same"] if seed % 3 == 0 else ["a", "b", "", "long " * 50, "größe"]
    log = "".join(rng.choice(words) + "\n" for _ in range(rng.randint(1, 60)))
    transcript, shown, written = Transcript(), [], 0
    while written < len(log):
        view = StreamView(transcript)
        starts = [0, *(i + 1 for i, character in enumerate(log[:written]) if character == "\n")]
        place = rng.choice([0, rng.choice(starts)])
        for _ in range(rng.randint(1, 6)):
            written = min(len(log), written + rng.randint(0, 80))
            sent = rng.randint(place, written)
            if sent > place:
                shown += view.take(log[place:sent])
                place = sent
            if view.waiting and rng.random() < 0.7:
                shown += transcript.catch_up(log[:written])
                view.place_in(log[:written])
    shown += transcript.catch_up(log)
    shown += transcript.finish()
    assert shown == log.removesuffix("\n").split("\n")


def test_placement_where_several_places_fit_waits_for_more() -> None:
    placement = Placement()
    placement.add("x\n")
    assert placement.end_in("x\nx\ny\n") is None
    placement.add("y\n")
    assert placement.end_in("x\nx\ny\n") == 6
    assert placement.end_in("another log\n") is None


def test_catch_up_with_a_log_that_is_behind_or_lost_shows_nothing() -> None:
    transcript = Transcript()
    assert list(transcript.extend("one\ntwo\n")) == ["one", "two"]
    assert list(transcript.catch_up("one\n")) == []
    assert list(transcript.catch_up("")) == []
    assert list(transcript.catch_up("one\ntwo\nthree\n")) == ["three"]


def test_catch_up_with_a_log_decoded_a_little_otherwise_finds_the_place_again() -> None:
    transcript = Transcript()
    lines = "".join(f"line {number}\n" for number in range(1000))
    list(transcript.extend("�\n" + lines))
    assert list(transcript.catch_up("���\n" + lines + "next\n")) == ["next"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_line_ends_in_pieces_are_those_of_the_whole(size: int) -> None:
    text = "dos\r\nbar 1\rbar 2\r\runix\n\r\n"
    ends = LineEnds()
    pieces = "".join(ends.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert pieces == unify_line_ends(text, final=False) == "dos\nbar 1\nbar 2\n\nunix\n\n"
    assert unify_line_ends("half\r", final=False) == "half"
    assert unify_line_ends("half\r", final=True) == "half\n"


@pytest.mark.parametrize(
    ("log", "count", "tail"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\n\n", 1, "\n"),
        ("a", 5, "a"),
        ("", 3, ""),
        ("a\n", 0, ""),
        ("a", 0, ""),
    ],
)
def test_start_of_last_lines_counts_a_last_line_without_newline(log: str, count: int, tail: str) -> None:
    assert log[start_of_last_lines(log, count) :] == tail
