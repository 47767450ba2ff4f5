"""Stop strings across any border of pieces, and nothing of them shown."""

from __future__ import annotations

import random

from tpuctl.text.stops import StopCutter


def shown(pieces: list[str], stops: list[str], *, keep_stop: bool = False) -> tuple[list[str], str | None]:
    cutter = StopCutter(stops, keep_stop=keep_stop)
    parts = []
    for piece in pieces:
        parts.append(cutter.add(piece))
        if cutter.found is not None:
            return parts, cutter.found
    return [*parts, cutter.finish()], None


def test_stop_across_pieces_is_never_shown() -> None:
    assert shown(["k1", " k2", " k3", " k4"], ["k2 k3"]) == (["k1", " ", ""], "k2 k3")


def test_stop_that_begins_and_ends_within_pieces_cuts_there() -> None:
    assert shown(["abXY", "Zcd"], ["YZ"]) == (["abX", ""], "YZ")


def test_beginning_of_a_stop_that_does_not_come_is_shown_after_all() -> None:
    assert shown(["ab", "ac"], ["abd"]) == (["", "abac", ""], None)


def test_stop_that_is_kept_ends_the_text() -> None:
    assert shown(["abXY", "Zcd"], ["YZ"], keep_stop=True) == (["abX", "YZ"], "YZ")


def test_any_split_of_a_text_shows_what_is_before_the_first_stop() -> None:
    for seed in range(300):
        check_split(random.Random(seed))


def check_split(chance: random.Random) -> None:
    text = "".join(chance.choices("ab", k=30))
    stops = ["".join(chance.choices("ab", k=chance.randint(1, 6))) for _ in range(3)]
    cuts = sorted(chance.sample(range(31), 8))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, 30], strict=True)]
    parts, found = shown(pieces, stops)
    # Character by character: the first place at which any stop is complete.
    ends = [end for end in range(31) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert ("".join(parts), found) == (text, None)
        return
    assert found is not None
    assert text.startswith("".join(parts) + found)
    assert len("".join(parts) + found) == ends[0]
