"""How likely the model finds a text: the score task, and the classify task, which takes the likeliest ending."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tpuctl.engine.request import Request, SamplingParams
from tpuctl.errors import DataError
from tpuctl.infer.language import Language, LanguageTask, good_rows
from tpuctl.infer.task import Worked

# The engine says what a prompt's tokens were worth with the first token that it makes.
_EXPLAINED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)


class ScoreTask(LanguageTask):
    """The log likelihood, in nats, of each text's tokens but the first, and the perplexity that it makes."""

    def work(self, rows: pa.Table) -> Worked:
        """Likelihoods; a text that is null, no UTF-8, too long or of fewer than two tokens is a bad row."""
        plan = self.plan
        assert plan.text_column is not None, "plan.infer fills it in"
        prompts = self.language.prompts(rows, plan.text_column, room=1, truncate=plan.too_long == "truncate")
        bad = dict(prompts.bad)
        bad |= {row: "one token has nothing to be told from" for row, ids in prompts.ids.items() if len(ids) == 1}
        ids = {row: found for row, found in prompts.ids.items() if row not in bad}
        logprobs = dict(zip(ids, token_logprobs(self.language, list(ids.values())), strict=True))
        good = good_rows(list(ids))
        totals = [math.fsum(logprobs[row]) for row in good]
        counts = [len(logprobs[row]) for row in good]
        columns = {
            "log_likelihood": pa.array(totals, pa.float64()),
            "scored_tokens": pa.array(counts, pa.int32()),
            "perplexity": pa.array([math.exp(-t / n) for t, n in zip(totals, counts, strict=True)], pa.float64()),
        }
        return Worked(
            columns=pa.table(columns),
            good=good,
            bad=tuple(sorted(bad.items())),
            tokens=sum(map(len, ids.values())),
            busy_seconds=self.language.loop.take_busy_seconds(),
        )


class ClassifyTask(LanguageTask):
    """The choice that is the likeliest to follow each text, by the sum of its tokens' log likelihoods in nats."""

    def work(self, rows: pa.Table) -> Worked:
        """Choices; a text that is null, no UTF-8, empty or too long is a bad row."""
        plan = self.plan
        assert plan.text_column is not None, "plan.infer fills it in"
        endings = [self.language.tokenizer.parse(choice).ids.tolist() for choice in plan.choices]
        room = 1 + max(map(len, endings))
        prompts = self.language.prompts(rows, plan.text_column, room=room, truncate=plan.too_long == "truncate")
        texts = [ids + ending for ids in prompts.ids.values() for ending in endings]
        found = iter(token_logprobs(self.language, texts))
        worth = {
            row: [math.fsum(logprobs[-len(ending) :]) for ending, logprobs in zip(endings, found, strict=False)]
            for row in prompts.ids
        }
        good = good_rows(list(prompts.ids))
        flat = np.array([worth[row] for row in good], np.float64)
        columns = {
            "choice": pa.array([plan.choices[int(np.argmax(worth[row]))] for row in good], pa.string()),
            "choice_log_likelihoods": pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), len(endings)),
        }
        return Worked(
            columns=pa.table(columns),
            good=good,
            bad=tuple(sorted(prompts.bad.items())),
            tokens=sum(map(len, texts)),
            busy_seconds=self.language.loop.take_busy_seconds(),
        )


def token_logprobs(language: Language, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log likelihood of each token but the first, given those before it."""
    requests = [Request(request_id=str(n), prompt=tuple(ids), sampling=_EXPLAINED) for n, ids in enumerate(texts)]
    answers = language.loop.ask(requests)
    for answer in answers:
        if answer.error is not None:
            raise DataError(f"the engine refuses a text: {answer.error}")
    return [[item.logprob for item in answer.prompt_logprobs] for answer in answers]
