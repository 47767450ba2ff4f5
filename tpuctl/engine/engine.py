"""The engine: requests in, tokens out, one ragged step at a time. Knows no HTTP, no Ray and no text.

Not thread-safe: one thread adds, steps and aborts. Nothing here reads a clock or draws a number of its own, so
engines that are given the same calls in the same order do the same: hosts of a slice can each run one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from tpuctl.engine.batch import BatchSizes, CompiledShape, SlotTable, StepResult, StepRunner
from tpuctl.engine.drafting import standing
from tpuctl.engine.explaining import PromptLogprobs, token_logprobs
from tpuctl.engine.options import EngineOptions, buckets, smallest
from tpuctl.engine.pages import PagePool
from tpuctl.engine.request import FinishReason, Output, Request, RequestError, TokenLogprobs
from tpuctl.engine.runner import Runner, RunnerOptions
from tpuctl.engine.scheduler import Scheduler, SchedulerOptions
from tpuctl.engine.sequence import Sequence, Work, seed_words
from tpuctl.engine.stats import COUNTED, EngineStats
from tpuctl.mesh import mesh_axis
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree


@dataclass(frozen=True, kw_only=True, slots=True)
class _InFlight:
    """A step on the device."""

    work: list[Work]
    launched: Any
    explained: bool


class Engine:
    """Continuous batching over one model."""

    def __init__(self, runner: StepRunner, *, sizes: BatchSizes, options: EngineOptions) -> None:
        """``runner`` has compiled its shapes, or will when they first come up."""
        self.options = options
        self._runner = runner
        self._shapes = buckets(options)
        self._vocab_size = options.real_vocab or sizes.vocab_size
        self._pool = PagePool(options.num_pages)
        self._scheduler = Scheduler(
            SchedulerOptions(
                page_size=options.page_size,
                max_running=options.max_running,
                max_step_tokens=options.max_step_tokens,
                max_rows=options.max_rows,
                max_length=options.max_length,
                prefix_cache=options.prefix_cache,
                speculate=options.speculate,
            ),
            pool=self._pool,
        )
        self._slots = SlotTable(sizes, eos_ids=options.eos_ids, adapters=options.adapters)
        self._samples: dict[str, list[Sequence]] = {}
        self._held: dict[Sequence, list[Sequence]] = {}  # samples that wait for the first to have computed the prompt
        self._prompts = PromptLogprobs(runner)
        self._in_flight: _InFlight | None = None
        self._arrivals = 0
        self._counts = dict.fromkeys(COUNTED, 0)

    def warm_up(self) -> Iterator[CompiledShape]:
        """Compile every shape a step may have, one for each item: until then the first of a shape waits for it."""
        return self._runner.warm_up()

    def add_request(self, request: Request) -> None:
        """Queue a request; its tokens come from later ``step`` calls.

        Raises:
            RequestError: The id is in use, the prompt or the output can never fit, or a token id does not exist.
        """
        self._check(request)
        sampling = request.sampling
        sequences = [
            Sequence(
                request,
                index=index,
                arrival=self._arrivals,
                max_length=self.options.max_length,
                seed_words=seed_words(sampling.seed, index, (self.options.seed, self._arrivals)),
            )
            for index in range(sampling.n)
        ]
        self._arrivals += 1
        self._samples[request.request_id] = list(sequences)
        shared = self.options.prefix_cache and sampling.prompt_logprobs is None
        first, rest = sequences[0], sequences[1:]
        if rest and shared:
            self._held[first] = rest
            sequences = [first]
        for sequence in sequences:
            self._scheduler.add(sequence)
            self._prompts.begin(sequence)

    def abort(self, request_id: str) -> bool:
        """End a request: what it holds is free at once, and no more output comes of it.

        Returns:
            Whether the engine held it; an unknown id is no error, it may just have finished.
        """
        sequences = self._samples.pop(request_id, [])
        for sequence in reversed(sequences):  # the first holds the others back
            self._forget(sequence)
        return bool(sequences)

    def step(self) -> list[Output]:
        """Launch one step on the device and hand out what the one before it made.

        So a sequence's tokens come one call later than they were computed: call until ``has_work`` is false. Where they
        promise drafts for the step to launch, they are fetched first.
        """
        before = self._in_flight
        if before is not None and self._scheduler.wants_tokens():
            outputs = self._collect(before)
            self._in_flight = self._launch()
            return outputs
        self._in_flight = self._launch()
        return [] if before is None else self._collect(before)

    def has_work(self) -> bool:
        """Whether ``step`` has anything to do, or to hand out."""
        return bool(self._samples) or self._in_flight is not None

    def stats(self) -> EngineStats:
        """Figures for a progress line or for metrics."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting + sum(map(len, self._held.values())),
            num_pages=self._pool.num_pages,
            free_pages=self._pool.num_free,
            cached_pages=self._pool.num_cached,
            preemptions=self._scheduler.num_preemptions,
            **self._counts,
        )

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, for weights that have changed."""
        self._pool.forget()

    def _check(self, request: Request) -> None:
        options, sampling = self.options, request.sampling
        if request.request_id in self._samples:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")
        if request.adapter is not None and request.adapter not in options.adapter_names:
            raise RequestError(f"no adapter {request.adapter!r} is loaded", param="adapter")
        for param, ids in (
            ("prompt", request.prompt),
            ("stop_ids", sampling.stop_ids),
            ("logit_bias", sampling.logit_bias),
        ):
            if (highest := max(ids, default=0)) >= self._vocab_size:
                raise RequestError(f"{param}: the model has no token {highest}, only {self._vocab_size}", param=param)
        if len(request.prompt) >= options.max_length:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens; with one to make that is above {options.max_length}",
                param="prompt",
            )
        if len(request.prompt) + sampling.min_tokens > options.max_length:
            raise RequestError(f"min_tokens does not fit in {options.max_length} tokens", param="min_tokens")
        longest = min(len(request.prompt) + sampling.max_tokens, options.max_length) - 1  # the last is not read again
        if (pages := -(-longest // options.page_size)) > options.num_pages:
            raise RequestError(f"needs {pages} pages, there are {options.num_pages}", param="max_tokens")

    def _launch(self) -> _InFlight | None:
        work = self._scheduler.schedule()
        if not work:
            return None
        tokens = sum(item.num_tokens for item in work)
        bucket = smallest(self._shapes, tokens=tokens, rows=sum(item.num_rows for item in work))
        batch = self._slots.batch(work, bucket=bucket)
        self._count(steps=1)
        if self._held:
            self._let_go(work)
        return _InFlight(work=work, launched=self._runner.launch(batch), explained=bool(batch.sampling["explained"]))

    def _let_go(self, work: list[Work]) -> None:
        for item in work:
            if item.draws:
                for sequence in self._held.pop(item.sequence, ()):
                    self._scheduler.add(sequence)

    def _collect(self, done: _InFlight) -> list[Output]:
        result = self._runner.fetch(done.launched, explained=done.explained)
        self._prompts.explain(done.work, done.launched)
        drawn, row = result.tokens.tolist(), 0
        outputs: list[Output] = []
        for item in done.work:
            if item.draws and not item.sequence.gone:
                outputs.append(self._taken(item, row, drawn[row : row + item.num_rows], result))
            row += item.num_rows
        self._count(output_tokens=sum(len(output.token_ids) for output in outputs))
        return outputs

    def _taken(self, item: Work, row: int, drawn: list[int], result: StepResult) -> Output:
        """What was drawn for a sequence, from ``row`` on, taken on, and the sequence ended where that ends it."""
        sequence = item.sequence
        begins = len(sequence.tokens) == sequence.num_prompt
        tokens, reason = self._appended(item, drawn)
        top = sequence.request.sampling.logprobs
        told = () if top is None else tuple(token_logprobs(result, row + i, t, top) for i, t in enumerate(tokens))
        output = Output(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=tuple(tokens),
            logprobs=told,
            prompt_logprobs=self._began(sequence) if begins else (),
            finish_reason=reason,
            stop_id=tokens[-1] if reason == "stop" else None,
            cached_tokens=sequence.num_cached,
        )
        if reason is not None:
            self._finish(sequence)
        return output

    def _appended(self, item: Work, drawn: list[int]) -> tuple[list[int], FinishReason | None]:
        """Those of the drawn tokens that stand and come before the sequence's end; they are its own now."""
        sequence, reason = item.sequence, None
        stand = standing(item.drafts, drawn) if item.drafts else drawn
        tokens: list[int] = []
        for token in stand:
            tokens.append(token)
            sequence.tokens.append(token)
            if (reason := self._finish_reason(sequence, token)) is not None:
                break
        right = min(len(tokens), len(stand) - 1)
        sequence.settle(right)
        self._count(draft_tokens=len(item.drafts), accepted_tokens=right)
        return tokens, reason

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] += number

    def _began(self, sequence: Sequence) -> tuple[TokenLogprobs, ...]:
        self._count(prompt_tokens=sequence.num_prompt, cached_tokens=sequence.num_cached)
        return self._prompts.take(sequence)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        if token in sampling.stop_ids or (token in self.options.eos_ids and not sampling.ignore_eos):
            return "stop"
        if len(sequence.tokens) >= sequence.end:
            return "length"
        if sequence.grammar is not None:
            try:
                sequence.grammar.accept(token)
            except RequestError:
                return "abort"
        return None

    def _finish(self, sequence: Sequence) -> None:
        name = sequence.request.request_id
        self._forget(sequence)
        self._samples[name].remove(sequence)
        if not self._samples[name]:
            del self._samples[name]

    def _forget(self, sequence: Sequence) -> None:
        if sequence.index and any(sequence in held for held in self._held.values()):
            sequence.gone = True
        else:
            self._scheduler.remove(sequence)
        self._held.pop(sequence, None)
        self._prompts.take(sequence)
        self._count(finished=1)


def create_engine(
    spec: ModelSpec, params: ParamTree, *, mesh: Mesh, options: EngineOptions, run: RunnerOptions | None = None
) -> Engine:
    """An engine whose step runs in this process, on ``mesh``.

    Args:
        spec: The model.
        params: Its parameters, of any dtype, in host memory or on devices.
        mesh: Every axis but ``tensor`` is 1.
        options: Sizes.
        run: How the step runs; by default in bf16 with the platform's attention.

    Raises:
        MeshError: The model does not divide over the mesh.
    """
    run = run or RunnerOptions()
    options = replace(options, min_step_tokens=max(options.min_step_tokens, mesh_axis(mesh, "tensor").size))
    runner = Runner(spec, params, mesh=mesh, engine=options, options=run)
    return Engine(runner, sizes=runner.program.sizes, options=options)
