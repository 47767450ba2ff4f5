"""An engine without a model: it obeys the engine's interface, holds pages, and makes letters or what it is told to."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tpuctl.engine.request import Grammar, Output, Request, RequestError, TokenLogprobs
from tpuctl.engine.stats import EngineStats

NextToken = Callable[[Request, int], int]


@dataclass
class _Running:
    request: Request
    arrival: int
    made: list[int] = field(default_factory=list)


def letters(request: Request, position: int, *, arrival: int = 0) -> int:
    """A letter that depends on the prompt, the place and, unless greedy, on the seed."""
    chance = "" if request.sampling.temperature == 0 else request.sampling.seed
    if chance is None:
        chance = arrival
    digest = hashlib.blake2b(f"{request.prompt}/{position}/{chance}".encode(), digest_size=2).digest()
    return 97 + int.from_bytes(digest, "big") % 26


def says(*tokens: int) -> NextToken:
    """Makes these tokens, then the end of the text of bytes."""
    return lambda _, position: tokens[position] if position < len(tokens) else 256


class ToyEngine:
    """Makes one token of each running request in each step. ``step_seconds`` is what a step takes."""

    def __init__(
        self,
        next_token: NextToken | None = None,
        *,
        eos_ids: Sequence[int] = (256,),
        vocab_size: int = 257,
        num_pages: int = 256,
        max_running: int = 8,
        step_seconds: float = 0.0,
    ) -> None:
        self.page_size = 4
        self.step_seconds = step_seconds
        self.fail_next_steps = 0
        self.seen: list[Request] = []
        self.threads: set[int] = set()
        self.steps = 0
        self._next_token = next_token
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size
        self._num_pages = num_pages
        self._max_running = max_running
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, _Running] = {}
        self._prompt_tokens = self._output_tokens = self._finished = 0

    def add_request(self, request: Request) -> None:
        self.threads.add(threading.get_ident())
        if request.request_id in self._running or request.request_id in self._waiting:
            raise RequestError("the id is in use", param="request_id")
        needs = -(-(len(request.prompt) + 1) // self.page_size)
        if needs > self._num_pages:
            raise RequestError(f"the prompt needs {needs} pages, there are {self._num_pages}", param="prompt")
        self.seen.append(request)
        self._waiting[request.request_id] = _Running(request, arrival=len(self.seen))

    def abort(self, request_id: str) -> bool:
        self.threads.add(threading.get_ident())
        found = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
        return found is not None

    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def step(self) -> list[Output]:
        self.threads.add(threading.get_ident())
        self.steps += 1
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.fail_next_steps:
            self.fail_next_steps -= 1
            raise RuntimeError("the device is on fire")
        self._let_in()
        return [self._go_on(running) for running in list(self._running.values())]

    def stats(self) -> EngineStats:
        running = list(self._running.values())
        used = sum(-(-(len(item.request.prompt) + len(item.made)) // self.page_size) for item in running)
        return EngineStats(
            running=len(running),
            waiting=len(self._waiting),
            num_pages=self._num_pages,
            free_pages=self._num_pages - used,
            cached_pages=0,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=0,
            output_tokens=self._output_tokens,
            draft_tokens=0,
            accepted_tokens=0,
            preemptions=0,
            steps=self.steps,
            finished=self._finished,
        )

    def _let_in(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            first = min(
                self._waiting, key=lambda key: (self._waiting[key].request.priority, self._waiting[key].arrival)
            )
            self._running[first] = self._waiting.pop(first)
            self._prompt_tokens += len(self._running[first].request.prompt)

    def _go_on(self, running: _Running) -> Output:
        request, sampling, position = running.request, running.request.sampling, len(running.made)
        try:
            token = self._draw(running, position) if request.grammar is None else _bound(request.grammar)
        except RequestError:
            del self._running[request.request_id]
            return Output(request_id=request.request_id, token_ids=(), finish_reason="abort")
        running.made.append(token)
        self._output_tokens += 1
        ends = token in sampling.stop_ids or (token in self._eos_ids and not sampling.ignore_eos)
        stops = ends and len(running.made) >= sampling.min_tokens
        full = len(running.made) >= sampling.max_tokens
        if stops or full:
            self._finished += 1
            del self._running[request.request_id]
        return Output(
            request_id=request.request_id,
            token_ids=(token,),
            logprobs=(_logprobs(token, sampling.logprobs),) if sampling.logprobs is not None else (),
            prompt_logprobs=self._prompt_logprobs(request) if position == 0 else (),
            finish_reason="stop" if stops else "length" if full else None,
            stop_id=token if stops else None,
        )

    def _draw(self, running: _Running, position: int) -> int:
        request = running.request
        forced = [token for token, bias in request.sampling.logit_bias.items() if bias == 100]
        if forced:
            return forced[0]
        if self._next_token is not None:
            return self._next_token(request, position)
        return letters(request, position, arrival=running.arrival)

    def _prompt_logprobs(self, request: Request) -> tuple[TokenLogprobs, ...]:
        count = request.sampling.prompt_logprobs
        return () if count is None else tuple(_logprobs(token, count) for token in request.prompt[1:])


def _bound(grammar: Grammar) -> int:
    """Of the bytes that a grammar allows one that soon comes to an end."""
    words = grammar.mask().view(np.uint32)
    allowed = [token for token in range(257) if words[token // 32] >> np.uint32(token % 32) & 1]
    token = next((token for token in (256, *b'}]"0123') if token in allowed), allowed[0])
    grammar.accept(token)
    return token


def _logprobs(token: int, count: int) -> TokenLogprobs:
    top = tuple(((token + i) % 257, -0.5 - i) for i in range(count))
    return TokenLogprobs(token=token, logprob=-0.5, rank=1, top=top)
