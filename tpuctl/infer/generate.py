"""The generate task: a prompt's tokens through the engine, its answer as text. Continuously batched, never padded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tpuctl.engine.request import Request
from tpuctl.infer.drawing import Drawing
from tpuctl.infer.engine_loop import Answer, Sampled
from tpuctl.infer.language import Language, MakeEngine, good_rows
from tpuctl.infer.task import Tell, Worked, tell_nobody
from tpuctl.infer.until import TextUntil
from tpuctl.plan.infer_schema import ReplicaPlan, TaskPlan


class GenerateTask:
    """Prompts to answers. A row done again, anywhere and in any company, is given the same answer."""

    def __init__(self, language: Language, plan: TaskPlan) -> None:
        """The task of a plan; raises as ``Drawing`` does."""
        assert plan.sampling is not None, "plan.infer_task fills it in"
        self.language = language
        self._plan = plan
        self._sampling = plan.sampling
        self._drawing = Drawing(plan.sampling, compiler=language.compiler)

    @classmethod
    def of(cls, plan: TaskPlan, uri: str, replica: ReplicaPlan, *, engine: MakeEngine | None = None) -> GenerateTask:
        """The task of a plan with the model in a folder; raises as ``Language.of`` and ``Drawing`` do."""
        return cls(Language.of(plan, uri, replica, engine=engine), plan)

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """An answer for each prompt; one that is null, no UTF-8, empty or too long is a bad row."""
        drawn = self._drawing.of(rows)
        room = {row: params.max_tokens for row, params in drawn.params.items()}
        prompts = self.language.prompts(rows, self._plan, room=room)
        requests = [
            Request(request_id=str(row), prompt=tuple(ids), sampling=drawn.params[row], grammar=drawn.grammars.get(row))
            for row, ids in prompts.ids.items()
        ]
        watches = self._watch if self._sampling.stop else None
        answers = dict(zip(prompts.ids, self.language.loop.ask(requests, watches=watches, tell=tell), strict=True))
        refused = {row: why for row, answer in answers.items() if (why := _refusal(answer)) is not None}
        good = good_rows([row for row in answers if row not in refused])
        made = {int(row): answers[row].samples for row in good}
        return Worked(
            columns=self._columns(prompts.ids, made),
            good=good,
            bad=tuple(sorted({**prompts.bad, **drawn.bad, **refused}.items())),
            tokens=sum(len(prompts.ids[row]) + sum(len(s.token_ids) for s in made[row]) for row in made),
            busy_seconds=self.language.loop.take_busy_seconds(),
        )

    def _watch(self, request: Request) -> TextUntil:
        return TextUntil(self.language.tokenizer.detokenizer(request.prompt), self._sampling.stop)

    def _columns(self, prompts: Mapping[int, list[int]], made: Mapping[int, list[Sampled]]) -> pa.Table:
        """One value for each row, or with several samples a list of them."""
        facts: dict[str, tuple[pa.DataType, list[list[Any]]]] = {
            "output": (pa.string(), [[self._text(prompts[row], s) for s in made[row]] for row in made]),
            "finish_reason": (pa.string(), [[s.finish_reason for s in samples] for samples in made.values()]),
            "output_tokens": (pa.int32(), [[len(s.token_ids) for s in samples] for samples in made.values()]),
        }
        if self._sampling.n == 1:
            return pa.table({name: pa.array([one for (one,) in rows], kind) for name, (kind, rows) in facts.items()})
        return pa.table({name: pa.array(rows, pa.list_(kind)) for name, (kind, rows) in facts.items()})

    def _text(self, prompt: list[int], sample: Sampled) -> str:
        """The text that goes on from the prompt's, as an endpoint streams it."""
        if isinstance(sample.watch, TextUntil):
            return sample.watch.finish()
        detokenizer = self.language.tokenizer.detokenizer(prompt)
        return detokenizer.add(sample.token_ids) + detokenizer.finish()


def _refusal(answer: Answer) -> str | None:
    if any(sample.finish_reason == "abort" for sample in answer.samples):
        return "no token goes on within the schema"
    return answer.error
