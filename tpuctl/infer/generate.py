"""The generate task: a prompt's tokens through the engine, its answer as text. Continuously batched, never padded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from tpuctl.engine.request import Request, SamplingParams
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.language import LanguageTask, good_rows
from tpuctl.infer.task import Worked


class GenerateTask(LanguageTask):
    """Prompts to answers. A row's seed follows from the plan's and from its id: done again, it is the same answer."""

    def work(self, rows: pa.Table) -> Worked:
        """An answer for each prompt; one that is null, no UTF-8, empty or too long is a bad row."""
        plan = self.plan
        assert plan.text_column is not None, "plan.infer fills it in"
        truncate = plan.too_long == "truncate"
        prompts = self.language.prompts(rows, plan.text_column, room=plan.max_tokens, truncate=truncate)
        seeds = _seeds(rows, prompts.ids, plan.seed)
        requests = [
            Request(request_id=str(row), prompt=tuple(ids), sampling=self._sampling(seeds[row]))
            for row, ids in prompts.ids.items()
        ]
        answers = dict(zip(prompts.ids, self.language.loop.ask(requests), strict=True))
        refused = {row: answer.error for row, answer in answers.items() if answer.error is not None}
        good = good_rows([row for row in answers if row not in refused])
        decoded = [self._text(prompts.ids[row], answers[row].token_ids) for row in good]
        columns = {
            "output": pa.array(decoded, pa.string()),
            "finish_reason": pa.array([answers[row].finish_reason for row in good], pa.string()),
            "output_tokens": pa.array([len(answers[row].token_ids) for row in good], pa.int32()),
        }
        return Worked(
            columns=pa.table(columns),
            good=good,
            bad=tuple(sorted({**prompts.bad, **refused}.items())),
            tokens=sum(len(prompts.ids[row]) + len(answers[row].token_ids) for row in good),
            busy_seconds=self.language.loop.take_busy_seconds(),
        )

    def _text(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """The text that goes on from the prompt's, as an endpoint streams it."""
        detokenizer = self.language.tokenizer.detokenizer(prompt)
        return detokenizer.add(answer) + detokenizer.finish()

    def _sampling(self, seed: int) -> SamplingParams:
        plan = self.plan
        return SamplingParams(temperature=plan.temperature, top_p=plan.top_p, max_tokens=plan.max_tokens, seed=seed)


def _seeds(rows: pa.Table, numbers: dict[int, list[int]], seed: int) -> dict[int, int]:
    ids = [rows.column(name).to_pylist() for name in ROW_ID.names]
    return {row: _seed(seed, *(column[row] for column in ids)) for row in numbers}


def _seed(*facts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=7).digest(), "big")
