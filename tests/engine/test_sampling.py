"""Sampling against plain numpy, and its distribution by chi-square with fixed seeds."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tpuctl.engine.sampling import EXCLUDED, SamplingRows, count, draw, explain, shape

VOCAB = 300
FLAGS = ("drawn", "cut", "penalised", "biased", "masked", "explained")


def rows(num_rows: int, **values: Any) -> SamplingRows:
    neutral: dict[str, Any] = {
        "temperature": np.ones(num_rows, np.float32),
        "top_k": np.zeros(num_rows, np.int32),
        "top_p": np.ones(num_rows, np.float32),
        "min_p": np.zeros(num_rows, np.float32),
        "repetition_penalty": np.ones(num_rows, np.float32),
        "frequency_penalty": np.zeros(num_rows, np.float32),
        "presence_penalty": np.zeros(num_rows, np.float32),
        "seed": np.stack([np.zeros(num_rows), np.arange(num_rows)], axis=1).astype(np.uint32),
        "position": np.zeros(num_rows, np.int32),
        "bias_ids": np.full((num_rows, 4), VOCAB, np.int32),
        "bias": np.zeros((num_rows, 4), np.float32),
        "allowed": np.full((num_rows, 10), -1, np.int32),
        **dict.fromkeys(FLAGS, np.True_),
    }
    for name, value in values.items():
        neutral[name] = np.broadcast_to(np.asarray(value, neutral[name].dtype), neutral[name].shape)
    assert set(neutral) == {field.name for field in fields(SamplingRows)}
    return SamplingRows(**{name: jnp.asarray(value) for name, value in neutral.items()})


def logits_like(num_rows: int = 1, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (num_rows, VOCAB)).astype(np.float32)


def kept(logits: np.ndarray, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    """What stays, by sorting."""
    p = np.exp((logits - logits.max()).astype(np.float64))
    p = np.where(p >= min_p, p, 0)
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p * p.sum()]] = 0
    return p / p.sum()


draws = jax.jit(draw)


@pytest.mark.parametrize(
    "cut",
    [
        {},
        pytest.param({"top_k": 5}, marks=pytest.mark.slow),
        pytest.param({"top_p": 0.7}, marks=pytest.mark.slow),
        pytest.param({"min_p": 0.1}, marks=pytest.mark.slow),
        {"top_k": 20, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 1},
    ],
    ids=str,
)
def test_draw_many_times_has_the_distribution_that_sorting_gives(cut: dict[str, float]) -> None:
    logits, samples = logits_like()[0], 20_000
    wanted = kept(logits, **cut)  # type: ignore[arg-type]
    tokens = draws(jnp.broadcast_to(logits, (samples, VOCAB)), rows(samples, **cut))
    seen = np.bincount(np.asarray(tokens), minlength=VOCAB)
    assert seen[wanted == 0].sum() == 0
    likely = wanted * samples >= 5  # the rest is one class, as the test's approximation asks
    observed = np.append(seen[likely], seen[~likely].sum())
    expected = np.append(wanted[likely], wanted[~likely].sum()) * samples
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) > 1:
        assert stats.chisquare(observed, expected).pvalue > 0.001


def test_draw_at_other_positions_of_one_seed_has_the_distribution_too() -> None:
    samples = 20_000
    logits = np.log(np.asarray([0.5, 0.3, 0.2], np.float32))
    given = replace(rows(samples, seed=[7, 9]), position=jnp.arange(samples, dtype=jnp.int32))
    tokens = np.asarray(draws(jnp.broadcast_to(logits, (samples, 3)), given))
    assert stats.chisquare(np.bincount(tokens), samples * np.asarray([0.5, 0.3, 0.2])).pvalue > 0.001
    pairs = np.bincount(tokens[:-1] * 3 + tokens[1:], minlength=9)
    assert stats.chi2_contingency(pairs.reshape(3, 3)).pvalue > 0.001


def test_draw_temperature_zero_takes_the_first_of_the_largest() -> None:
    logits = logits_like(3)
    logits[1, [40, 200]] = 50.0
    tokens = draws(logits, rows(3, temperature=[0.0, 0.0, 1.0]))
    assert tokens[:2].tolist() == [int(logits[0].argmax()), 40]


def test_draw_tiny_temperature_takes_the_likeliest_and_a_huge_one_is_uniform() -> None:
    logits = logits_like(2000, seed=3)
    assert (np.asarray(draws(logits, rows(2000, temperature=1e-30))) == logits.argmax(axis=1)).all()
    hot = np.bincount(np.asarray(draws(logits, rows(2000, temperature=1e30))) // 50)
    assert stats.chisquare(hot).pvalue > 0.001


def test_draw_row_alone_or_among_others_is_the_same() -> None:
    logits = logits_like(16, seed=4)
    given = rows(16, temperature=np.linspace(0, 2, 16), top_k=np.arange(16), top_p=0.9)
    together = np.asarray(draws(logits, given))
    for i in range(16):
        alone = jax.tree.map(lambda x, i=i: x[i : i + 1] if x.ndim else x, given)
        assert draws(logits[i : i + 1], alone)[0] == together[i]


def test_draw_padded_and_excluded_tokens_never_come() -> None:
    logits = np.full((5000, VOCAB), EXCLUDED, np.float32)
    logits[:, 250:255] = -1000.0
    tokens = np.asarray(draws(logits, rows(5000, temperature=5.0)))
    assert set(tokens.tolist()) == set(range(250, 255))


def test_shape_penalties_equal_the_plain_formula() -> None:
    logits = logits_like(2)
    made, prompt = np.zeros((2, VOCAB), np.int32), np.zeros((2, VOCAB), np.int32)
    made[:, 3], made[:, 8], prompt[:, 8], prompt[:, 9] = 2, 1, 1, 1
    given = rows(2, repetition_penalty=[1.5, 1.0], frequency_penalty=0.5, presence_penalty=[0.25, 0.0])
    wanted = logits.copy()
    for token in (3, 8, 9):
        wanted[0, token] = wanted[0, token] / 1.5 if wanted[0, token] > 0 else wanted[0, token] * 1.5
    wanted -= 0.5 * made
    wanted[0] -= 0.25 * (made[0] > 0)
    np.testing.assert_allclose(shape(logits, given, jnp.asarray(2 * made + prompt)), wanted, rtol=1e-6)


def test_shape_of_two_halves_of_the_vocabulary_equals_the_whole() -> None:
    logits = logits_like(1)
    given = rows(1, bias_ids=[[5, 299, 150, VOCAB]], bias=[[1.0, -2.0, EXCLUDED, 9.0]], allowed=0x5A5A5A5A)
    counts = jnp.zeros((1, VOCAB), jnp.int32)
    whole = np.asarray(shape(logits, given, counts))
    halves = [
        np.asarray(shape(logits[:, first : first + 150], given, counts[:, :150], first_token=first))
        for first in (0, 150)
    ]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)
    allowed = (0x5A5A5A5A >> (np.arange(VOCAB) % 32)) & 1 == 1
    assert (whole[0, ~allowed] == EXCLUDED).all()
    assert whole[0, 299] == logits[0, 299] - 2.0 if allowed[299] else whole[0, 299] == EXCLUDED


def test_count_counts_twice_and_keeps_the_prompts_bit() -> None:
    counts = count(jnp.ones((2, 8), jnp.int32), jnp.asarray([3, 7]), first_token=4)
    assert counts.tolist() == [[1] * 8, [1, 1, 1, 3, 1, 1, 1, 1]]


def test_explain_equals_log_softmax() -> None:
    logits = logits_like(3)
    tokens = np.asarray([0, 100, int(logits[2].argmax())])
    told = explain(logits, jnp.asarray(tokens))
    wanted = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    np.testing.assert_allclose(told.logprob, wanted[np.arange(3), tokens], rtol=1e-5)
    np.testing.assert_array_equal(told.rank[2], 1)
    np.testing.assert_array_equal(told.top_ids, np.argsort(-wanted, axis=1, kind="stable")[:, :20])
    np.testing.assert_array_equal(told.rank, 1 + (logits > logits[np.arange(3), tokens][:, None]).sum(axis=1))
