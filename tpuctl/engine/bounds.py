"""What a request's draw is bound by beside its parameters: biases of its own, and the mask of its grammar. No jax."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tpuctl.engine.request import MAX_LOGIT_BIAS, MAX_STOP_IDS
from tpuctl.engine.sequence import Sequence

EXCLUDED = -1e30
MAX_BIAS = 512
"""Columns of the bias arrays: a request's own, and its stop ids and ends of text while it may not stop."""


class BoundRow(NamedTuple):
    """A row of a step whose draw is bound, its sequence, and how many drafts are between that and the row."""

    row: int
    sequence: Sequence
    ahead: int


def biases(bound: list[BoundRow], *, num_rows: int, vocab_size: int, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The fields ``bias*`` of ``sampling.SamplingRows``; the arrays only where a row has any."""
    by_row = {item.row: bias for item in bound if (bias := _bias(item, eos_ids))}
    if not by_row:
        return {"biased": np.False_}
    ids = np.full((num_rows, MAX_BIAS), vocab_size, np.int32)
    values = np.zeros((num_rows, MAX_BIAS), np.float32)
    for row, bias in by_row.items():
        ids[row, : len(bias)] = list(bias)
        values[row, : len(bias)] = list(bias.values())
    return {"biased": np.True_, "bias_ids": ids, "bias": values}


def masks(bound: list[BoundRow], *, num_rows: int, vocab_size: int) -> dict[str, Any]:
    """The fields ``masked`` and ``allowed``, the latter only where a row has a grammar."""
    grammars = {item.row: item.sequence.grammar for item in bound if item.sequence.grammar is not None}
    if not grammars:
        return {"masked": np.False_}
    allowed = np.full((num_rows, -(-vocab_size // 32)), -1, np.int32)
    for row, grammar in grammars.items():
        mask = grammar.mask()
        allowed[row] = 0
        allowed[row, : len(mask)] = mask
    return {"masked": np.True_, "allowed": allowed}


def _bias(item: BoundRow, eos_ids: tuple[int, ...]) -> dict[int, float]:
    sampling = item.sequence.request.sampling
    # The token to be drawn is already pending here.
    if item.sequence.num_output + item.ahead > sampling.min_tokens:
        return dict(sampling.logit_bias)
    forbidden = sampling.stop_ids if sampling.ignore_eos else (*sampling.stop_ids, *eos_ids)
    return {**sampling.logit_bias, **dict.fromkeys(forbidden, EXCLUDED)}


assert MAX_LOGIT_BIAS + MAX_STOP_IDS < MAX_BIAS
