"""What ``/v1/completions`` answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tpuctl.serve.asking import Ask, Limit, Wanted, make_ask
from tpuctl.serve.envelope import Envelope, ending
from tpuctl.serve.generation import Generation
from tpuctl.serve.logprobs import CompletionLogprobs, joined
from tpuctl.serve.prompts import prompt_ids
from tpuctl.serve.protocol import ApiError, CompletionBody
from tpuctl.serve.sample import Delta
from tpuctl.serve.served import Served

DEFAULT_MAX_TOKENS = 16


async def ask_completion(body: CompletionBody, *, served: Served) -> Ask:
    """What a body asks of the engine.

    Raises:
        ApiError: Its prompts or its fields can't be served.
    """
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("0 tokens can be made only with echo", param="max_tokens", code="invalid_value")
    if body.best_of is not None and body.best_of != body.samples:
        raise ApiError("best_of: only equal to n", param="best_of", code="unsupported_parameter")
    special = body.add_special_tokens is not False
    prompts = [await prompt_ids(served, prompt, add_special_tokens=special) for prompt in body.prompt]
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.max_tokens is None:
        limit = max(1, min(limit, *(served.max_length - len(prompt) for prompt in prompts)))
    wanted = Wanted(
        limit=Limit(max_tokens=limit, param="max_tokens", prompt_param="prompt"),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    return make_ask(body, prompts, served=served, wanted=wanted)


class CompletionAnswer:
    """The choices of one answer."""

    def __init__(self, body: CompletionBody, ask: Ask, *, served: Served) -> None:
        self._body = body
        self._served = served
        self._envelope = Envelope(
            answer_id=f"cmpl-{ask.request_id}",
            kind="text_completion",
            model=body.model,
            chunk_usage=body.wants_usage,
        )
        self._choices = [_Choice.of(body, ask, index, served=served) for index in range(len(ask.requests))]

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """All choices, complete."""
        merged: list[dict[str, Any]] = [{} for _ in self._choices]
        async for index, delta in generation.deltas():
            merged[index] = _merged(merged[index], self._choices[index].document(delta))
        return self._envelope.whole(merged, generation.usage)

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """The choices as they come."""
        async for index, delta in generation.deltas():
            yield self._envelope.chunk(self._choices[index].document(delta))
        if self._body.wants_usage:
            yield self._envelope.last(generation.usage)


@dataclass(kw_only=True)
class _Choice:
    index: int
    prompt: tuple[int, ...]
    echo: str | None
    logprobs: CompletionLogprobs | None
    only_echo: bool

    @classmethod
    def of(cls, body: CompletionBody, ask: Ask, index: int, *, served: Served) -> _Choice:
        prompt = body.prompt[index // ask.samples]
        text = prompt if isinstance(prompt, str) else served.tokenizer.decode(prompt)
        return cls(
            index=index,
            prompt=ask.prompt_of(index),
            echo=text if body.echo else None,
            logprobs=None if body.logprobs is None else CompletionLogprobs(served.tokenizer),
            only_echo=body.max_tokens == 0,
        )

    def document(self, delta: Delta) -> dict[str, Any]:
        made = Delta(finish_reason=delta.finish_reason and "length") if self.only_echo else delta
        logprobs = None
        if self.logprobs is not None:
            shown = () if self.only_echo else delta.logprobs
            before = self._prompt_logprobs(delta)
            logprobs = (
                self.logprobs.document(shown) if before is None else joined(before, self.logprobs.document(shown))
            )
        echo, self.echo = self.echo or "", None
        return {
            "index": self.index,
            "text": echo + made.text,
            "logprobs": logprobs,
            **ending(made.finish_reason, made.stop_reason),
        }

    def _prompt_logprobs(self, delta: Delta) -> dict[str, Any] | None:
        """Once, with the echo."""
        if self.echo is None or self.logprobs is None:
            return None
        return self.logprobs.prompt(self.prompt, delta.prompt_logprobs)


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    if not first:
        return second
    both = first["logprobs"] is not None and second["logprobs"] is not None
    logprobs = joined(first["logprobs"], second["logprobs"]) if both else second["logprobs"]
    return {**second, "text": first["text"] + second["text"], "logprobs": logprobs}
