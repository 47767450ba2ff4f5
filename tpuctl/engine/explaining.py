"""Log probabilities as requests ask for them: of the tokens drawn, and of the prompt's, gathered chunk by chunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpuctl.engine.batch import EXPLAINED_ROWS, StepResult, StepRunner
from tpuctl.engine.request import TokenLogprobs
from tpuctl.engine.sequence import Sequence, Work


class PromptLogprobs:
    """Of the sequences that want them and have not made a token yet."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._told: dict[Sequence, list[TokenLogprobs]] = {}

    def begin(self, sequence: Sequence) -> None:
        """Follow a sequence, if it wants that."""
        if sequence.request.sampling.prompt_logprobs is not None:
            self._told[sequence] = []

    def explain(self, work: list[Work], launched: Any) -> None:
        """Add those of the prompt tokens that this step's tokens predict."""
        if not self._told:
            return
        at = 0
        for item in work:
            if item.sequence in self._told:
                self._explain(item, launched, at)
            at += item.num_tokens

    def take(self, sequence: Sequence) -> tuple[TokenLogprobs, ...]:
        """What there is of a sequence, which is followed no more."""
        return tuple(self._told.pop(sequence, ()))

    def _explain(self, item: Work, launched: Any, at: int) -> None:
        told, top = self._told[item.sequence], item.sequence.request.sampling.prompt_logprobs
        assert top is not None
        # Computed again after a preemption, a token is explained already.
        first, past = max(item.start, len(told)), min(item.start + item.num_tokens, item.sequence.num_prompt - 1)
        for start in range(first, past, EXPLAINED_ROWS):
            count = min(EXPLAINED_ROWS, past - start)
            targets = np.asarray(item.sequence.tokens[start + 1 : start + 1 + count], np.int32)
            places = at + start - item.start + np.arange(count, dtype=np.int32)
            result = self._runner.explain(launched, places=places, targets=targets)
            told.extend(token_logprobs(result, i, int(targets[i]), top) for i in range(count))


def token_logprobs(result: StepResult, row: int, token: int, top: int) -> TokenLogprobs:
    """A row's, with the ``top`` likeliest."""
    assert result.logprob is not None
    assert result.rank is not None
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    likeliest = zip(result.top_ids[row, :top].tolist(), result.top_logprobs[row, :top].tolist(), strict=True)
    return TokenLogprobs(
        token=token, logprob=float(result.logprob[row]), rank=int(result.rank[row]), top=tuple(likeliest)
    )
