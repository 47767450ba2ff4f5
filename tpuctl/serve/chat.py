"""What ``/v1/chat/completions`` answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tpuctl.engine.request import Grammar, RequestError
from tpuctl.serve.asking import Ask, Limit, Wanted, make_ask
from tpuctl.serve.envelope import Envelope, ending
from tpuctl.serve.forms import Form, form_of_chat, wanted_calls
from tpuctl.serve.generation import Generation, MakeGrammar
from tpuctl.serve.logprobs import chat_logprobs
from tpuctl.serve.prompts import chat_ids
from tpuctl.serve.protocol import ApiError, ChatBody
from tpuctl.serve.protocol.errors import of_engine
from tpuctl.serve.sample import Delta
from tpuctl.serve.served import Served
from tpuctl.serve.tool_calls import Call, CallReader, can_read_calls


async def ask_chat(body: ChatBody, *, served: Served, make_grammar: MakeGrammar | None) -> Ask:
    """What a body asks of the engine.

    Raises:
        ApiError: Its messages or its fields can't be served.
    """
    _check(body, served=served)
    wanted = Wanted(
        limit=Limit(max_tokens=body.output_limit, param=body.limit_param, prompt_param="messages"),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=await _grammar(form_of_chat(body), make_grammar),
    )
    return make_ask(body, [await chat_ids(served, body)], served=served, wanted=wanted)


class ChatAnswer:
    """The choices of one answer."""

    def __init__(self, body: ChatBody, ask: Ask, *, served: Served) -> None:
        self._body = body
        self._served = served
        self._envelope = Envelope(
            answer_id=f"chatcmpl-{ask.request_id}",
            kind="chat.completion",
            model=body.model,
            chunk_usage=body.wants_usage,
        )
        self._choices = [_Choice(body=body, served=served) for _ in ask.requests]

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """All choices, complete."""
        parts: list[list[Delta]] = [[] for _ in self._choices]
        async for index, delta in generation.deltas():
            parts[index].append(delta)
        documents = [
            {"index": index, **choice.whole(deltas)}
            for index, (choice, deltas) in enumerate(zip(self._choices, parts, strict=True))
        ]
        return self._envelope.whole(documents, generation.usage)

    async def chunks(self, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """The choices as they come; each begins with its role."""
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, delta in generation.deltas():
            for document in self._choices[index].chunks(delta):
                yield self._envelope.chunk({"index": index, **document})
        if self._body.wants_usage:
            yield self._envelope.last(generation.usage)

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return self._envelope.chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})


@dataclass(kw_only=True)
class _Choice:
    body: ChatBody
    served: Served
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = None if wanted_calls(self.body) is None else CallReader()

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """The finished choice."""
        last = deltas[-1]
        text = "".join(part for delta in deltas for part in self._read(delta) if isinstance(part, str))
        logprobs = [item for delta in deltas for item in delta.logprobs]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self.calls:
            message = {**message, "content": text or None, "tool_calls": [call.document() for call in self.calls]}
        return {"message": message, "logprobs": self._logprobs(logprobs), **self._ending(last)}

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """What a delta adds. Its log probabilities go with the first chunk, its end with the last."""
        bodies = [self._body(part) for part in self._read(delta)] or [{}]
        found = [{"delta": body, "logprobs": None, "finish_reason": None} for body in bodies]
        found[0]["logprobs"] = self._logprobs(list(delta.logprobs))
        found[-1].update(self._ending(delta))
        return [chunk for chunk in found if chunk["delta"] or chunk["logprobs"] or chunk["finish_reason"]]

    def _read(self, delta: Delta) -> list[str | Call]:
        if self._reader is None:
            return [delta.text] if delta.text else []
        parts = self._reader.add(delta.text)
        if delta.finish_reason is not None:
            parts += self._reader.finish()
        return [part for part in parts if self._kept(part)]

    def _kept(self, part: str | Call) -> bool:
        if isinstance(part, str):
            return True
        if self.calls and self.body.parallel_tool_calls is False:
            return False
        self.calls.append(part)
        return True

    def _body(self, part: str | Call) -> dict[str, Any]:
        if isinstance(part, str):
            return {"content": part}
        return {"tool_calls": [{"index": self.calls.index(part), **part.document()}]}

    def _ending(self, delta: Delta) -> dict[str, Any]:
        if delta.finish_reason == "stop" and self.calls:
            return {"finish_reason": "tool_calls", "stop_reason": delta.stop_reason}
        return ending(delta.finish_reason, delta.stop_reason)

    def _logprobs(self, items: list[Any]) -> dict[str, Any] | None:
        return chat_logprobs(items, tokenizer=self.served.tokenizer) if self.body.logprobs else None


async def _grammar(form: Form | None, make_grammar: MakeGrammar | None) -> Grammar | None:
    """What the answer is bound to; compiled on another thread, since a large schema takes its time."""
    if form is None:
        return None
    if make_grammar is None:
        message = f"{form.param} is not served here: answers are not bound to a form"
        raise ApiError(message, param=form.param, code="unsupported_parameter")
    try:
        return await asyncio.to_thread(make_grammar, form)
    except RequestError as error:
        raise of_engine(error) from error


def _check(body: ChatBody, *, served: Served) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs goes together with logprobs", param="top_logprobs", code="invalid_value")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        message = "max_tokens is the older name of max_completion_tokens: give one of them"
        raise ApiError(message, param="max_tokens", code="invalid_value")
    if body.add_generation_prompt and body.continue_final_message:
        message = "a conversation can't both be continued and be answered"
        raise ApiError(message, param="continue_final_message", code="invalid_value")
    for param in ("tool_choice", "parallel_tool_calls"):
        if getattr(body, param) is not None and not body.tools:
            raise ApiError(f"{param} goes together with tools", param=param, code="invalid_value")
    _check_tools(body, served=served)


def _check_tools(body: ChatBody, *, served: Served) -> None:
    if wanted_calls(body) is None or served.chat is None:
        return
    if not can_read_calls(served.chat.with_tools.source):
        message = f"the form in which {served.name} writes its calls is not known here"
        raise ApiError(message, param="tools", code="unsupported_parameter")
