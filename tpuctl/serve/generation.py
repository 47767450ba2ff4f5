"""All samples of a request, from the engine's tokens to text, in the order in which it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tpuctl.engine.request import Grammar, Output
from tpuctl.serve.asking import Ask
from tpuctl.serve.bridge import Bridge, Group
from tpuctl.serve.forms import Form
from tpuctl.serve.metrics import Metrics, Timing
from tpuctl.serve.protocol.errors import ApiError, timed_out, unavailable
from tpuctl.serve.sample import Delta, Sample
from tpuctl.serve.served import Served


@dataclass(kw_only=True, slots=True)
class Usage:
    """Token counts. A prompt counts once, however many samples were made of it."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0

    def document(self) -> dict[str, Any]:
        """As an answer has them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


MakeGrammar = Callable[[Form], Grammar]


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """What every request is served with. ``timeout_seconds`` bounds a whole answer; without ``make_grammar`` none can
    be bound to a form."""

    served: Served
    bridge: Bridge
    metrics: Metrics
    timeout_seconds: float
    make_grammar: MakeGrammar | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the engine can be expected to go on."""
        return self.bridge.is_alive

    @property
    def draining(self) -> bool:
        """Whether nothing is let in any more."""
        return self.bridge.draining
        return self.bridge.draining

    def drain(self) -> None:
        """Let nothing in any more."""
        self.bridge.draining = True

    def figures(self) -> dict[str, Any]:
        """How it goes: what runs and waits, what was made, how full the pages are, how long first tokens took."""
        stats = self.bridge.stats()
        used = stats.num_pages - stats.free_pages - stats.cached_pages
        return {
            "running": stats.running,
            "waiting": stats.waiting,
            "output_tokens": stats.output_tokens,
            "page_use": used / max(1, stats.num_pages),
            "first_token_seconds": self.metrics.recent_first_token(),
        }


class Generation:
    """One request in the engine's hands. ``deltas`` can be read once."""

    def __init__(self, ask: Ask, group: Group, *, serving: Serving, deadline: float) -> None:
        self.ask = ask
        self.usage = Usage(prompt_tokens=sum(map(len, ask.prompts)))
        self._group = group
        self._serving = serving
        self._deadline = deadline
        self._choices = {request.request_id: index for index, request in enumerate(ask.requests)}
        self._samples = [
            Sample(tokenizer=serving.served.tokenizer, prompt=ask.prompt_of(index), options=ask.text)
            for index in range(len(ask.requests))
        ]
        self._timing = Timing(serving.metrics, samples=len(ask.requests))

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """The index of a choice, and what came to it. Each has one last delta, with its reason.

        Raises:
            ApiError: The engine failed, or the request's time was over.
        """
        outputs = self._group.outputs()
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    output = await anext(outputs, None)
            except TimeoutError:
                raise timed_out(self._serving.timeout_seconds) from None
            if output is None:
                return
            index = self._choices[output.request_id]
            delta = self._take(index, output)
            if not delta.is_empty:
                yield index, delta

    def _take(self, index: int, output: Output) -> Delta:
        if output.finish_reason == "abort":
            raise self._aborted(index)
        sample = self._samples[index]
        before = sample.num_tokens
        delta = sample.add(output)
        self.usage.completion_tokens += sample.num_tokens - before
        if before == 0 and index % self.ask.samples == 0:
            self.usage.cached_tokens += output.cached_tokens
        self._timing.tokens(index, count=sample.num_tokens - before)
        if delta.finish_reason is not None:
            self._group.abort(output.request_id)
            prompt_tokens = len(self.ask.prompt_of(index))
            self._timing.finished(delta.finish_reason, prompt_tokens=prompt_tokens, output_tokens=sample.num_tokens)
        return delta

    def _aborted(self, index: int) -> ApiError:
        """Why the engine ended a request: a form that proved too large to be followed, or what is ours."""
        if self.ask.requests[index].grammar is None:
            return unavailable("the server ended this request")
        message = "the form of the answer is too large to be followed any further"
        return ApiError(message, param="response_format", code="invalid_value")


@asynccontextmanager
async def generating(ask: Ask, *, serving: Serving, timeout_seconds: float | None = None) -> AsyncIterator[Generation]:
    """Let a request in; leaving the block ends it.

    Raises:
        ApiError: It is refused, or there is no room.
    """
    seconds = min(serving.timeout_seconds, timeout_seconds or serving.timeout_seconds)
    deadline = asyncio.get_running_loop().time() + seconds
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout_at(deadline):
                group = await stack.enter_async_context(serving.bridge.group(ask.requests))
        except TimeoutError:
            raise timed_out(seconds) from None
        yield Generation(ask, group, serving=serving, deadline=deadline)
