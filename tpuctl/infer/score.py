"""How likely the model finds texts: the score task, of a text or of each of some endings, and the classify task, which
takes the likeliest ending."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tpuctl.engine.request import Request, SamplingParams
from tpuctl.errors import DataError
from tpuctl.infer.arrays import to_objects
from tpuctl.infer.language import Language, LanguageTask, good_rows
from tpuctl.infer.task import Tell, Worked, tell_nobody
from tpuctl.plan.infer_schema import TaskPlan

# The engine says what a prompt's tokens were worth with the first token that it makes.
_EXPLAINED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)


class ScoreTask(LanguageTask):
    """The log likelihood, in nats, of each text's tokens but the first, and the perplexity that it makes.

    With choices: of each choice's tokens after the text, as lists.
    """

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """Likelihoods; a text that is null, no UTF-8, too long or of fewer than two tokens is a bad row."""
        if self.plan.choices or self.plan.choices_column:
            worth = worth_of_choices(self.language, self.plan, rows, tell=tell)
            columns = {name: pa.array(values, pa.list_(kind)) for name, kind, values in _told(worth.logprobs)}
            return worth.worked(self.language, pa.table(columns))
        room = dict.fromkeys(range(rows.num_rows), 1)
        prompts = self.language.prompts(rows, self.plan, room=room, whole=True)
        bad = dict(prompts.bad)
        bad |= {row: "one token has nothing to be told from" for row, ids in prompts.ids.items() if len(ids) == 1}
        ids = {row: found for row, found in prompts.ids.items() if row not in bad}
        found = token_logprobs(self.language, list(ids.values()), tell=tell)
        worth = Worth(
            logprobs={row: [logprobs] for row, logprobs in zip(ids, found, strict=True)},
            bad=bad,
            tokens=sum(map(len, ids.values())),
        )
        columns = {name: pa.array([one for (one,) in values], kind) for name, kind, values in _told(worth.logprobs)}
        return worth.worked(self.language, pa.table(columns))


class ClassifyTask(LanguageTask):
    """The choice that is the likeliest to follow each text, by the sum of its tokens' log likelihoods in nats."""

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """Choices; a text that is null, no UTF-8, empty or too long, or without choices, is a bad row."""
        worth = worth_of_choices(self.language, self.plan, rows, tell=tell)
        sums = {row: [math.fsum(logprobs) for logprobs in choices] for row, choices in worth.logprobs.items()}
        columns = {
            "choice": pa.array([worth.choices[row][int(np.argmax(sums[row]))] for row in sums], pa.string()),
            "choice_log_likelihoods": pa.array(list(sums.values()), self._kind()),
        }
        return worth.worked(self.language, pa.table(columns))

    def _kind(self) -> pa.DataType:
        """All rows have the recipe's choices, or each its own number of them."""
        count = len(self.plan.choices)
        return pa.list_(pa.float64(), count) if count else pa.list_(pa.float64())


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """What texts are worth, by row: the log likelihoods of the tokens of each of them. Rows are in ascending order."""

    logprobs: dict[int, list[list[float]]]
    bad: dict[int, str]
    tokens: int
    choices: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def worked(self, language: Language, columns: pa.Table) -> Worked:
        """The outcome with these columns."""
        return Worked(
            columns=columns,
            good=good_rows(list(self.logprobs)),
            bad=tuple(sorted(self.bad.items())),
            tokens=self.tokens,
            busy_seconds=language.loop.take_busy_seconds(),
        )


def worth_of_choices(language: Language, plan: TaskPlan, rows: pa.Table, *, tell: Tell) -> Worth:
    """What each choice is worth after its row's text.

    Raises:
        DataError: a column that isn't there.
    """
    choices, bad = _choices(plan, rows)
    spelled = {text: language.tokenizer.parse(text).ids.tolist() for texts in choices.values() for text in texts}
    endings = {row: [spelled[text] for text in texts] for row, texts in choices.items()}
    bad |= {row: "a choice has no tokens" for row, ids in endings.items() if not all(ids)}
    room = {row: 1 + max(map(len, ids)) for row, ids in endings.items() if row not in bad}
    prompts = language.prompts(rows, plan, room=room)
    texts = [ids + ending for row, ids in prompts.ids.items() for ending in endings[row]]
    share = len(prompts.ids) / max(1, len(texts))
    found = iter(token_logprobs(language, texts, tell=lambda count: tell(count * share)))
    return Worth(
        logprobs={row: [next(found)[-len(ending) :] for ending in endings[row]] for row in prompts.ids},
        bad={**prompts.bad, **bad},
        tokens=sum(map(len, texts)),
        choices=choices,
    )


def token_logprobs(language: Language, texts: Sequence[Sequence[int]], *, tell: Tell) -> list[list[float]]:
    """The log likelihood of each token but the first, given those before it."""
    requests = [Request(request_id=str(n), prompt=tuple(ids), sampling=_EXPLAINED) for n, ids in enumerate(texts)]
    answers = language.loop.ask(requests, tell=tell)
    for answer in answers:
        if answer.error is not None:
            raise DataError(f"the engine refuses a text: {answer.error}")
    return [[item.logprob for item in answer.prompt_logprobs] for answer in answers]


def _choices(plan: TaskPlan, rows: pa.Table) -> tuple[dict[int, tuple[str, ...]], dict[int, str]]:
    if plan.choices_column is None:
        return dict.fromkeys(range(rows.num_rows), plan.choices), {}
    column = plan.choices_column
    inputs = to_objects(rows, [column])
    choices, bad = dict[int, tuple[str, ...]](), dict(inputs.bad)
    for row, found in enumerate(inputs.arrays[column]):
        if row in bad:
            continue
        if isinstance(found, list) and found and all(isinstance(text, str) for text in found):
            choices[row] = tuple(found)
        else:
            bad[row] = f"column {column!r} holds no choices, a list of texts"
    return choices, bad


def _told(worth: Mapping[int, list[list[float]]]) -> Iterator[tuple[str, pa.DataType, list[list[Any]]]]:
    """The new columns: name, type of one value, and for each row the value of each of its texts."""
    totals = [[math.fsum(logprobs) for logprobs in texts] for texts in worth.values()]
    counts = [[len(logprobs) for logprobs in texts] for texts in worth.values()]
    yield "log_likelihood", pa.float64(), totals
    yield "scored_tokens", pa.int32(), counts
    means = [[-t / n for t, n in zip(*row, strict=True)] for row in zip(totals, counts, strict=True)]
    yield "perplexity", pa.float64(), [[math.exp(mean) for mean in row] for row in means]
