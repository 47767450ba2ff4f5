"""Requests of several adapters in one batch, against weights into which each is merged."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from tests.fakes.tiny_engine import (
    ADAPTERS,
    LORAS,
    SIZES,
    SPEC,
    VOCAB,
    ask,
    naive_greedy,
    naive_logits,
    run,
    tiny_engine,
    tokens_of,
)
from tpuctl.engine.adapters import NONE
from tpuctl.engine.batch import Bucket, SlotTable
from tpuctl.engine.engine import Engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.request import Request, RequestError
from tpuctl.engine.runner import batch_sizes

NAMES = (None, *LORAS)


@pytest.fixture(scope="module")
def shared() -> Engine:
    return tiny_engine(adapted=True)


def prompts(count: int, *, longest: int = 40) -> list[list[int]]:
    rng = random.Random(21)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def of(adapter: str | None, prompt: list[int], **asked: Any) -> Request:
    return replace(ask(prompt, **asked), adapter=adapter)


def test_mixed_batch_says_what_each_merged_model_says_alone(shared: Engine) -> None:
    asked = [(prompt, name) for prompt in prompts(4) for name in NAMES]
    outputs = run(shared, *[of(name, prompt, name=str(i)) for i, (prompt, name) in enumerate(asked)])
    for i, (prompt, name) in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8, adapter=name), (prompt, name)
    said = [tokens_of(outputs[str(i)]) for i in range(3)]
    assert said[0] != said[1] != said[2] != said[0], "the adapters must make a difference"


def test_log_probabilities_are_those_of_the_merged_model_whatever_shares_the_batch(shared: Engine) -> None:
    prompt = prompts(1)[0]
    company = [of(name, prompt, name=f"{name} beside", max_tokens=20) for name in NAMES]
    for name in NAMES:
        wanted_of = of(name, prompt, name="r", logprobs=2, prompt_logprobs=1, temperature=0.9, seed=5)
        alone, crowded = run(shared, wanted_of)["r"], run(shared, *company, wanted_of)["r"]
        tokens = tokens_of(alone)
        assert tokens_of(crowded) == tokens
        wanted = np.asarray(jax.nn.log_softmax(naive_logits(prompt + tokens, adapter=name), axis=-1))
        told = [entry for output in crowded for entry in (*output.prompt_logprobs, *output.logprobs)]
        for place, entry in enumerate(told):
            assert entry.logprob == pytest.approx(wanted[place, entry.token], abs=1e-3)


def test_prefix_is_found_by_requests_of_the_same_adapter_only() -> None:
    engine = tiny_engine(adapted=True)
    prompt = list(range(40))
    for name in NAMES:
        first, again = (run(engine, of(name, prompt))["r"] for _ in range(2))
        assert first[-1].cached_tokens == 0
        assert again[-1].cached_tokens == 36
        assert tokens_of(again) == tokens_of(first) == naive_greedy(prompt, 8, adapter=name)


def test_preempted_sequence_goes_on_with_its_adapter() -> None:
    engine = tiny_engine(adapted=True, num_pages=20)
    asked = [(prompt, name) for prompt in prompts(3, longest=20) for name in NAMES]
    outputs = run(engine, *[of(name, prompt, name=str(i), max_tokens=24) for i, (prompt, name) in enumerate(asked)])
    assert engine.stats().preemptions > 0
    for i, (prompt, name) in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 24, adapter=name)


@pytest.mark.parametrize("adapted", [True, False])
def test_adapter_that_is_not_there_is_refused(shared: Engine, adapted: bool) -> None:
    engine = shared if adapted else tiny_engine()
    with pytest.raises(RequestError, match="no adapter 'nobody' is loaded") as refused:
        engine.add_request(of("nobody", [1, 2]))
    assert refused.value.param == "adapter"


@pytest.mark.slow
def test_tensor_parallel_gives_the_same_tokens() -> None:
    """On four devices each of the two key heads, and what stands beside it, is there twice."""
    asked = [(prompt, name) for prompt in prompts(2) for name in NAMES]
    outputs = run(tiny_engine(tensor=4, adapted=True), *[of(name, p, name=str(i)) for i, (p, name) in enumerate(asked)])
    for i, (prompt, name) in enumerate(asked):
        assert tokens_of(outputs[str(i)]) == naive_greedy(prompt, 8, adapter=name)


def test_step_says_each_tokens_adapter_and_nothing_of_it_in_an_engine_without() -> None:
    sizes, bucket = batch_sizes(SPEC, EngineOptions(**SIZES)), Bucket(tokens=16, rows=8)
    assert SlotTable(sizes, eos_ids=()).batch([], bucket=bucket).adapters is None
    padding = SlotTable(sizes, eos_ids=(), adapters=ADAPTERS).batch([], bucket=bucket).adapters
    assert padding is not None
    assert padding.tolist() == [NONE] * 16
