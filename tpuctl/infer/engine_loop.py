"""One thread that drives the engine for all parts in work: their rows share its batches, and none waits for another."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tpuctl.engine.engine import Engine
from tpuctl.engine.request import FinishReason, Output, Request, RequestError, TokenLogprobs
from tpuctl.errors import HostLostError, JobFailedError
from tpuctl.infer.task import Tell, tell_nobody

# Requests taken on before a step, as many as could begin in it: all of a part at once would keep the devices waiting.
_ADMITTED = 512


class Watch(Protocol):
    """Looks at a sample's tokens as they come and ends it. Called by the loop's thread: it must be quick."""

    def add(self, token_ids: Sequence[int]) -> bool:
        """Whether the sample is at its end with these."""
        ...


@dataclass(kw_only=True, slots=True)
class Sampled:
    """One sample of a request: its tokens and why it ended."""

    watch: Watch | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(kw_only=True, slots=True)
class Answer:
    """What came of a request: its samples, or, if it can't be served, why."""

    samples: list[Sampled]
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


@dataclass(kw_only=True, slots=True)
class _Asked:
    """Requests of one caller, and how many of them are open."""

    answers: dict[str, Answer]
    open: int
    tell: Tell
    done: threading.Event = field(default_factory=threading.Event)


class EngineLoop:
    """``ask`` from any thread. The engine itself is only ever touched by the loop's own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: deque[tuple[Request, _Asked]] = deque()
        self._asked: dict[str, _Asked] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._busy_seconds = 0.0
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def ask(
        self,
        requests: Sequence[Request],
        *,
        watches: Callable[[Request], Watch] | None = None,
        tell: Tell = tell_nobody,
    ) -> list[Answer]:
        """The answers to requests, in their order; their ids are replaced by the loop's own.

        ``watches`` makes what looks at a sample of a request; ``tell`` is told of each that is done.

        Raises:
            HostLostError: a host that runs the engine's steps is gone.
            JobFailedError: the engine failed.
        """
        named = [replace(request, request_id=str(next(self._numbers))) for request in requests]
        answers = {request.request_id: _unanswered(request, watches) for request in named}
        asked = _Asked(answers=answers, open=len(named), tell=tell)
        if not named:
            return []
        with self._changed:
            self._waiting.extend((request, asked) for request in named)
            self._changed.notify()
        while not asked.done.wait(timeout=1):
            if isinstance(self._failure, HostLostError):  # another start may help
                raise HostLostError(self._failure.message) from self._failure
            if self._failure is not None:
                raise JobFailedError(f"the engine failed: {self._failure!r}") from self._failure
        return list(asked.answers.values())

    def take_busy_seconds(self) -> float:
        """How long the engine has stepped since this was last asked."""
        with self._changed:
            seconds, self._busy_seconds = self._busy_seconds, 0.0
        return seconds

    def _run(self) -> None:
        try:
            while True:
                self._admit()
                began = time.monotonic()
                for output in self.engine.step():
                    self._take(output)
                with self._changed:
                    self._busy_seconds += time.monotonic() - began
        except Exception as error:  # noqa: BLE001 — those who wait must learn of it, whatever it is
            self._failure = error

    def _admit(self) -> None:
        with self._changed:
            while not self._waiting and not self.engine.has_work():
                self._changed.wait()
            admitted = [self._waiting.popleft() for _ in range(min(len(self._waiting), _ADMITTED))]
        for request, asked in admitted:
            self._asked[request.request_id] = asked
            try:
                self.engine.add_request(request)
            except RequestError as error:
                asked.answers[request.request_id].error = error.message
                self._close(request.request_id)

    def _take(self, output: Output) -> None:
        answer = self._asked[output.request_id].answers[output.request_id]
        sample = answer.samples[output.index]
        if sample.finish_reason is not None:
            return  # of a request whose other samples go on
        answer.prompt_logprobs = answer.prompt_logprobs or output.prompt_logprobs
        sample.finish_reason = "stop" if _ends(sample, output.token_ids) else output.finish_reason
        if all(sample.finish_reason is not None for sample in answer.samples):
            self.engine.abort(output.request_id)  # of one that a watch has ended the engine doesn't know that yet
            self._close(output.request_id)

    def _close(self, request_id: str) -> None:
        asked = self._asked.pop(request_id)
        asked.open -= 1
        asked.tell(1)
        if not asked.open:
            asked.done.set()


def _ends(sample: Sampled, token_ids: Sequence[int]) -> bool:
    """Take on tokens up to the one at which the sample's watch ends it; whether it does."""
    if sample.watch is None:
        sample.token_ids += token_ids
        return False
    for token in token_ids:
        sample.token_ids.append(token)
        if sample.watch.add((token,)):
            return True
    return False


def _unanswered(request: Request, watches: Callable[[Request], Watch] | None) -> Answer:
    return Answer(samples=[Sampled(watch=watches and watches(request)) for _ in range(request.sampling.n)])
