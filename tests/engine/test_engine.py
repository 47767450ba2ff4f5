"""The engine over a tiny random decoder, against the plain forward pass."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from tests.fakes.tiny_engine import (
    SPEC,
    VOCAB,
    ask,
    naive_greedy,
    naive_logits,
    run,
    tiny_engine,
    tokens_of,
)
from tpuctl.engine.engine import Engine
from tpuctl.engine.request import Request, RequestError, SamplingParams


@pytest.fixture(scope="module")
def shared() -> Engine:
    """One engine for the tests that change nothing about it: it keeps its compiled steps, and must keep no pages."""
    return tiny_engine()


def prompts(count: int, *, longest: int = 60, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def all_pages_free(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.free_pages + stats.cached_pages == stats.num_pages and stats.running == stats.waiting == 0


def test_greedy_prompts_of_mixed_lengths_equal_the_forward_pass(shared: Engine) -> None:
    asked = prompts(14)
    outputs = run(shared, *[ask(prompt, name=str(i)) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8)
    assert all_pages_free(shared)


def test_greedy_with_few_pages_preempts_and_gives_the_same() -> None:
    engine = tiny_engine(num_pages=20)
    asked = prompts(8, longest=30, seed=1)
    outputs = run(engine, *[ask(prompt, name=str(i), max_tokens=30) for i, prompt in enumerate(asked)])
    assert engine.stats().preemptions > 0
    for i, prompt in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 30)
    assert all_pages_free(engine)


def test_prefix_cache_on_and_off_give_the_same_and_only_one_finds_tokens(shared: Engine) -> None:
    start = prompts(1, seed=2)[0][:30] + list(range(20))
    asked = [start + tail for tail in ([1], [2, 3], [4] * 9, [])]
    found = []
    for engine in (shared, tiny_engine(prefix_cache=False)):
        before = engine.stats().cached_tokens
        for i, prompt in enumerate(asked):
            outputs = run(engine, ask(prompt, name=str(i)))
            assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8)
        found.append(engine.stats().cached_tokens - before)
    assert found[0] >= 3 * (len(start) - 4)
    assert found[1] == 0


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.2, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
        {"temperature": 0.0, "repetition_penalty": 2.0},
    ],
    ids=["plain", "cut", "penalised", "greedy-penalised"],
)
def test_seeded_sampling_alone_equals_sampling_in_a_full_batch(shared: Engine, sampling: dict[str, Any]) -> None:
    asked = prompts(10, longest=25, seed=3)

    def request(i: int) -> Request:
        return ask(asked[i], name=str(i), max_tokens=12, seed=i, **sampling)

    together = run(shared, *[request(i) for i in range(10)])
    for i in (0, 4, 9):
        alone = run(shared, request(i))
        assert tokens_of(alone[str(i)]) == tokens_of(together[str(i)])


def test_sampling_after_preemption_equals_sampling_with_room() -> None:
    asked = prompts(6, longest=20, seed=4)
    results = []
    for pages in (64, 18):
        engine = tiny_engine(num_pages=pages)
        requests = [
            ask(p, name=str(i), max_tokens=30, seed=i, temperature=0.9, frequency_penalty=0.4)
            for i, p in enumerate(asked)
        ]
        results.append({name: tokens_of(outputs) for name, outputs in run(engine, *requests).items()})
    assert engine.stats().preemptions > 0
    assert results[0] == results[1]


def test_samples_of_one_seeded_request_differ_and_share_the_prompt(shared: Engine) -> None:
    prompt = prompts(1, seed=6)[0] + [7] * 20
    request = ask(prompt, temperature=1.0, seed=3, n=4)
    before = shared.stats().cached_tokens
    outputs = run(shared, request)["r"]
    samples = [tokens_of(outputs, index=i) for i in range(4)]
    assert len({tuple(sample) for sample in samples}) == 4
    assert shared.stats().cached_tokens - before >= 3 * (len(prompt) // 4 * 4 - 4)
    again = run(shared, request)["r"]
    assert [tokens_of(again, index=i) for i in range(4)] == samples
    assert all_pages_free(shared)


def test_unseeded_requests_differ_and_another_engine_repeats_them() -> None:
    request = ask([1, 2, 3], temperature=1.0)
    first, second = tiny_engine(), tiny_engine()
    twice = [tokens_of(run(first, request)["r"]) for _ in range(2)]
    assert twice[0] != twice[1]
    assert [tokens_of(run(second, request)["r"]) for _ in range(2)] == twice


def test_stop_id_ends_the_output_and_min_tokens_puts_it_off(shared: Engine) -> None:
    prompt = [3, 1, 4, 1, 5]
    greedy = naive_greedy(prompt, 8)
    stop = greedy[2]
    outputs = run(shared, ask(prompt, stop_ids=(stop,)))["r"]
    assert tokens_of(outputs) == greedy[: greedy.index(stop) + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_id) == ("stop", stop)
    later = tokens_of(run(shared, ask(prompt, stop_ids=(stop,), min_tokens=6))["r"])
    assert stop not in later[:6]
    assert len(later) >= 7


def test_first_token_is_the_stop_id_gives_one_token(shared: Engine) -> None:
    prompt = [9, 9]
    outputs = run(shared, ask(prompt, stop_ids=(naive_greedy(prompt, 1)[0],)))["r"]
    assert (len(tokens_of(outputs)), outputs[-1].finish_reason) == (1, "stop")


def test_end_of_text_stops_unless_ignored() -> None:
    prompt = [3, 1, 4, 1, 5]
    greedy = naive_greedy(prompt, 8)
    engine = tiny_engine(eos_ids=(greedy[3],))
    assert tokens_of(run(engine, ask(prompt))["r"]) == greedy[: greedy.index(greedy[3]) + 1]
    assert tokens_of(run(engine, ask(prompt, ignore_eos=True))["r"]) == greedy


def test_logit_bias_forces_and_forbids(shared: Engine) -> None:
    assert tokens_of(run(shared, ask([1, 2], logit_bias={77: 100.0}))["r"]) == [77] * 8
    forbidden = naive_greedy([1, 2], 1)[0]
    assert tokens_of(run(shared, ask([1, 2], max_tokens=1, logit_bias={forbidden: -100.0}))["r"]) != [forbidden]


def test_logprobs_equal_log_softmax_of_the_forward_pass(shared: Engine) -> None:
    prompt = prompts(1, longest=40, seed=8)[0]
    outputs = run(shared, ask(prompt, logprobs=3, prompt_logprobs=2), ask(prompt, name="plain"))
    tokens = tokens_of(outputs["r"])
    wanted = np.asarray(jax.nn.log_softmax(naive_logits(prompt + tokens), axis=-1))
    told = [entry for output in outputs["r"] for entry in (*output.prompt_logprobs, *output.logprobs)]
    assert [entry.token for entry in told] == (prompt + tokens)[1:]
    for place, entry in enumerate(told):
        assert entry.logprob == pytest.approx(wanted[place, entry.token], abs=1e-4)
        assert entry.rank == 1 + (wanted[place] > wanted[place, entry.token]).sum()
        top = np.argsort(-wanted[place], kind="stable")[: len(entry.top)]
        assert [token for token, _ in entry.top] == top.tolist()
    assert len(told[0].top) == 2
    assert len(told[-1].top) == 3
    assert all(not output.logprobs for output in outputs["plain"])


def test_context_full_ends_with_length(shared: Engine) -> None:
    prompt = prompts(1, seed=9)[0][:10]
    outputs = run(shared, ask(prompt, max_tokens=10_000))["r"]
    assert (len(prompt) + len(tokens_of(outputs)), outputs[-1].finish_reason) == (96, "length")
    assert tokens_of(outputs) == naive_greedy(prompt, 86)


@pytest.mark.parametrize(
    ("request_of", "param"),
    [
        (lambda: ask([VOCAB]), "prompt"),
        (lambda: ask([1] * 96), "prompt"),
        (lambda: ask([]), "prompt"),
        (lambda: ask([1], stop_ids=(VOCAB,)), "stop_ids"),
        (lambda: ask([1], logit_bias={VOCAB: 1.0}), "logit_bias"),
        (lambda: ask([1] * 90, min_tokens=8), "min_tokens"),
        (lambda: replace(ask([1]), adapter="unknown"), "adapter"),
    ],
)
def test_add_request_that_can_never_be_served_names_the_parameter(shared: Engine, request_of: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        shared.add_request(request_of())
    assert caught.value.param == param
    assert not shared.has_work()


def test_add_request_larger_than_all_pages_is_refused_at_once() -> None:
    engine = tiny_engine(num_pages=4)
    with pytest.raises(RequestError, match="needs 6 pages, there are 4"):
        engine.add_request(ask([1] * 10, max_tokens=15))
    assert tokens_of(run(engine, ask([1] * 10, max_tokens=7))["r"]) == naive_greedy([1] * 10, 7)


def test_add_request_with_an_id_in_use_is_refused(shared: Engine) -> None:
    shared.add_request(ask([1]))
    with pytest.raises(RequestError):
        shared.add_request(ask([1]))
    assert shared.abort("r")
    assert not shared.abort("r")
    run(shared)
    assert all_pages_free(shared)


def test_random_aborts_leak_nothing_and_change_no_other_result() -> None:
    engine = tiny_engine(num_pages=24)
    rng = random.Random(11)
    asked = prompts(300, longest=20, seed=10)
    outputs: dict[str, list[int]] = {}
    aborted: set[str] = set()
    waiting = list(range(300))
    while waiting or engine.has_work():
        for _ in range(min(rng.randint(0, 3), len(waiting))):
            name = str(waiting.pop())
            n = rng.choice([1, 1, 1, 2])
            engine.add_request(ask(asked[int(name)], name=name, max_tokens=rng.randint(1, 12), n=n))
            outputs[name] = []
        for output in engine.step():
            assert output.request_id not in aborted, "output after the abort"
            if output.index == 0:
                outputs[output.request_id].extend(output.token_ids)
        if rng.random() < 0.4:
            name = rng.choice(list(outputs) or ["none"])
            if engine.abort(name):
                aborted.add(name)
    assert all_pages_free(engine)
    assert 30 < len(aborted) < 270
    for name in set(outputs) - aborted:
        assert outputs[name] == naive_greedy(asked[int(name)], len(outputs[name]))


class _Alternate:
    """Allows an even token, then an odd one, and so on."""

    def __init__(self, parity: int = 0) -> None:
        self.parity = parity

    def mask(self) -> np.ndarray:
        word = 0x55555555 if self.parity == 0 else 0xAAAAAAAA
        return np.full(VOCAB // 32, word, np.uint32).view(np.int32)

    def accept(self, token: int) -> None:
        assert token % 2 == self.parity
        self.parity = 1 - self.parity

    def fork(self) -> _Alternate:
        return _Alternate(self.parity)


def test_grammar_binds_its_request_and_no_other(shared: Engine) -> None:
    bound = replace(ask([5, 6, 7], name="bound", temperature=1.0, seed=1, n=2), grammar=_Alternate())
    outputs = run(shared, bound, ask([5, 6, 7], name="free"))
    for index in range(2):
        tokens = tokens_of(outputs["bound"], index=index)
        assert [token % 2 for token in tokens] == [0, 1] * 4
    assert tokens_of(outputs["free"]) == naive_greedy([5, 6, 7], 8)


@pytest.mark.parametrize("tensor", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_tensor_parallel_gives_the_same_tokens(tensor: int) -> None:
    """On four devices each of the two key heads is there twice."""
    engine = tiny_engine(tensor=tensor)
    asked = prompts(5, seed=12)
    requests = [ask(p, name=str(i), logprobs=2, frequency_penalty=0.1) for i, p in enumerate(asked)]
    requests += [ask(asked[0], name="drawn", temperature=1.0, seed=1, top_k=50)]
    alone = tiny_engine()
    wanted, got = run(alone, *requests), run(engine, *requests)
    for name, outputs in wanted.items():
        assert tokens_of(got[name]) == tokens_of(outputs)
        for a, b in zip(got[name], outputs, strict=True):
            for x, y in zip(a.logprobs, b.logprobs, strict=True):
                assert x.logprob == pytest.approx(y.logprob, abs=1e-4)


@pytest.mark.parametrize("tensor", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_tensor_parallel_with_drafts_gives_the_same_tokens(tensor: int) -> None:
    few = {"logit_bias": {7: 100.0, 90: 100.0}, "max_tokens": 40}
    requests = [ask(p, name=str(i), logprobs=2, **few) for i, p in enumerate(prompts(3, seed=12))]
    requests += [ask([4], name="drawn", temperature=1.0, seed=1, **few)]
    engine = tiny_engine(tensor=tensor, speculate=4)
    wanted, got = run(tiny_engine(), *requests), run(engine, *requests)
    assert {name: tokens_of(outputs) for name, outputs in got.items()} == {
        name: tokens_of(outputs) for name, outputs in wanted.items()
    }
    assert 0 < engine.stats().accepted_tokens < engine.stats().draft_tokens


# One program for both of these tests, since it takes seconds to compile.
WINDOWED = replace(SPEC, name="windowed", sliding_window=9, local_layers=(0,), attention_softcap=4.0)
REAL_VOCAB = 100


def test_windows_and_soft_caps_equal_the_forward_pass() -> None:
    engine = tiny_engine(WINDOWED, real_vocab=REAL_VOCAB)
    asked = [[token % REAL_VOCAB for token in prompt] for prompt in prompts(6, seed=13)]
    outputs = run(engine, *[ask(prompt, name=str(i)) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8, WINDOWED, real_vocab=REAL_VOCAB)


def test_padded_vocabulary_is_never_drawn() -> None:
    engine = tiny_engine(WINDOWED, real_vocab=REAL_VOCAB)
    outputs = run(engine, *[ask([1, 2], name=str(i), temperature=50.0, max_tokens=90) for i in range(8)])
    drawn = {token for out in outputs.values() for token in tokens_of(out)}
    assert max(drawn) < REAL_VOCAB
    assert len(drawn) > 0.9 * REAL_VOCAB


def test_sampling_params_out_of_range_name_the_parameter() -> None:
    wrong: dict[str, list[Any]] = {
        "temperature": [-1.0, float("nan"), float("inf"), "hot", True],
        "top_k": [-1, 1.5, True],
        "top_p": [0.0, 1.1],
        "min_p": [-0.1, 2.0],
        "repetition_penalty": [0.0, -1.0],
        "frequency_penalty": [2.1],
        "presence_penalty": [-2.1],
        "logit_bias": [{-1: 0.0}, {1: 101.0}, {1: float("nan")}, dict.fromkeys(range(301), 0.0)],
        "seed": [1.5, 2**63],
        "max_tokens": [0, -5, 1.0],
        "min_tokens": [-1, 17],
        "stop_ids": [(-1,), (1.5,), tuple(range(65))],
        "ignore_eos": [1],
        "logprobs": [21, -1],
        "prompt_logprobs": [True],
        "n": [0, 129],
    }
    for param, values in wrong.items():
        for value in values:
            with pytest.raises(RequestError) as caught:
                SamplingParams(**{param: value})
            assert caught.value.param == param, (param, value)
