"""Drafts by lookup: what is found, and that an engine with drafts makes the very tokens of one without, and sooner."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fakes.tiny_engine import VOCAB, ask, run, tiny_engine, tokens_of
from tpuctl.engine.drafting import Lookup, standing
from tpuctl.engine.engine import Engine
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.request import Output, Request

MOTIF = [11, 42, 7, 99, 3, 58, 21]


def lookup_of(tokens: list[int]) -> Lookup:
    lookup = Lookup(tokens)
    lookup.read()
    return lookup


def test_draft_goes_on_as_the_latest_of_the_longest_matches() -> None:
    tokens = [1, 2, 3, 4, 70, 9, 2, 3, 4, 80, 3, 4, 90, 5, 2, 3, 4]
    assert lookup_of(tokens).draft(4) == (80, 3), "three tokens match, of which one counts for doubt"
    assert lookup_of([1, 2, 3]).draft(4) == ()
    assert lookup_of([5, 6, 1, 6, 2, 5, 6]).draft(4) == (1,)


def test_draft_of_a_loop_goes_round_again() -> None:
    assert lookup_of([1, 2, 3] * 4).draft(7) == (1, 2, 3, 1, 2, 3, 1)
    assert lookup_of([8] * 9).draft(4) == (8,) * 4


def test_lookup_read_token_by_token_equals_one_that_read_all_but_for_doubt() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(3) for _ in range(200)]
    grown: list[int] = []
    lookup = Lookup(grown)
    for token in tokens:
        grown.append(token)
        lookup.read()
    found = lookup.draft(2)
    assert found == lookup_of(tokens).draft(2)[: len(found)]


def test_lookup_that_was_wrong_believes_longer_matches_only() -> None:
    tokens = [token for i in range(20) for token in (1, 2, 50 + i)]
    lookup = Lookup(tokens)
    promised = 0
    for place in range(6):
        tokens += [1, 2]
        lookup.read()
        promised += bool(lookup.promise)
        tokens.append(100 + place)
        lookup.read()
    assert promised < 3
    tokens += MOTIF * 3
    for token in MOTIF:
        tokens.append(token)
        lookup.read()
    assert lookup.draft(4) == tuple(MOTIF[:4])


@pytest.mark.parametrize(
    ("drafts", "drawn", "stand"),
    [((), [5], [5]), ((5, 6), [5, 6, 7], [5, 6, 7]), ((5, 6), [5, 9, 7], [5, 9]), ((5, 6), [1, 6, 7], [1])],
)
def test_drawn_tokens_stand_up_to_the_first_that_no_draft_foresaw(
    drafts: tuple[int, ...], drawn: list[int], stand: list[int]
) -> None:
    assert standing(drafts, drawn) == stand


def test_shapes_with_drafts_are_as_many_and_hold_every_step() -> None:
    sizes: dict[str, Any] = {"max_length": 9, "num_pages": 9, "max_step_tokens": 512}
    for running in (1, 2, 8, 64, 256):
        plain, drafting = (EngineOptions(**sizes, max_running=running, speculate=count) for count in (0, 4))
        assert len(buckets(drafting)) <= max(14, len(buckets(plain)))
        assert max(shape.rows for shape in buckets(drafting)) >= drafting.max_rows
        assert min(5, running * 5) <= drafting.max_rows <= max(running, 64)


def words(*tokens: int) -> dict[str, Any]:
    """Nothing else is ever said, so that it is often said again; which comes next hangs on all before it."""
    return {"logit_bias": dict.fromkeys(tokens, 100.0)}


def requests(count: int = 12) -> list[Request]:
    """Of few words and of all, the likeliest tokens and drawn ones, with all that bounds a draw or ends an answer."""
    rng = random.Random(1)
    kinds: list[dict[str, Any]] = [
        words(5),
        words(6, 7) | {"min_tokens": 17, "stop_ids": (7,)},
        words(8, 9) | {"temperature": 0.7, "seed": 3, "logprobs": 2},
        words(10, 11, 12) | {"temperature": 30.0, "seed": 4, "top_k": 3, "n": 3},
        words(6, 7),
        words(13, 14) | {"frequency_penalty": 0.1},
        words(15, 16, 17) | {"stop_ids": (16,)},
        {"temperature": 0.9, "seed": 9},
    ]
    return [
        ask(
            [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))],
            name=str(i),
            **{"max_tokens": rng.randint(20, 60)} | kinds[i % len(kinds)],
        )
        for i in range(count)
    ]


def told(outputs: dict[str, list[Output]]) -> dict[str, Any]:
    """All that may not depend on drafts, of each sample."""
    facts: dict[str, Any] = {}
    for name, found in outputs.items():
        for index in {output.index for output in found}:
            mine = [output for output in found if output.index == index]
            logprobs = [entry for output in mine for entry in output.logprobs]
            last = mine[-1]
            facts[f"{name}.{index}"] = (
                tokens_of(found, index=index),
                last.finish_reason,
                last.stop_id,
                [(entry.token, entry.rank, round(entry.logprob, 3)) for entry in logprobs],
            )
    return facts


def all_pages_free(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.free_pages + stats.cached_pages == stats.num_pages and stats.running == stats.waiting == 0


@pytest.mark.parametrize(
    "sizes",
    [{}, {"num_pages": 26}, {"max_running": 3, "prefix_cache": False}],
    ids=["room", "few-pages", "few-slots-no-cache"],
)
def test_engine_with_drafts_makes_the_same_tokens(sizes: dict[str, Any]) -> None:
    plain, drafting = tiny_engine(**sizes), tiny_engine(**sizes, speculate=4)
    wanted, got = run(plain, *requests()), run(drafting, *requests())
    assert told(got) == told(wanted)
    stats = drafting.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert stats.output_tokens == plain.stats().output_tokens
    assert stats.prompt_tokens == plain.stats().prompt_tokens
    assert stats.preemptions > 0 or "num_pages" not in sizes
    assert all_pages_free(drafting)


def test_answer_that_repeats_takes_a_fraction_of_the_steps_and_another_as_many() -> None:
    again = [ask([3, 1, 4], name=str(i), max_tokens=60, **words(70 + i)) for i in range(3)]
    plain, drafting = tiny_engine(), tiny_engine(speculate=4)
    assert told(run(drafting, *again)) == told(run(plain, *again))
    assert plain.stats().steps == 60
    assert drafting.stats().steps < 20
    assert drafting.stats().accepted_tokens >= 0.9 * drafting.stats().draft_tokens
    before = [engine.stats() for engine in (plain, drafting)]
    other = ask([3, 1, 4], max_tokens=60, temperature=8.0, seed=1)
    assert told(run(drafting, other)) == told(run(plain, other))
    steps = [engine.stats().steps - stats.steps for engine, stats in zip((plain, drafting), before, strict=True)]
    assert 0.9 * steps[0] <= steps[1] <= steps[0]


def test_one_who_repeats_does_not_hold_up_many_who_do_not() -> None:
    """One draft is worth four sequences: with as many who draw, all go on one step behind."""
    engine = tiny_engine(speculate=1)
    drawn = [ask([i], name=str(i), max_tokens=30, temperature=8.0, seed=i) for i in range(6)]
    run(engine, ask([3, 1, 4], name="again", max_tokens=30, **words(70)), *drawn)
    assert engine.stats().draft_tokens <= 3
    run(engine, ask([3, 1, 4], name="again", max_tokens=30, **words(70)), *drawn[:3])
    assert engine.stats().accepted_tokens >= 10
