"""One sample of an answer: tokens in, text out, with each token's log probabilities beside the text it ends in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tpuctl.engine.request import FinishReason, Output, TokenLogprobs
from tpuctl.text import Tokenizer
from tpuctl.text.stops import StopCutter


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """How tokens become text."""

    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    keep_special: bool = False
    min_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What came to one sample: text, the log probabilities that belong to it, and at the end why it ended.

    ``prompt_logprobs`` come once, before anything else.
    """

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.text or self.logprobs or self.prompt_logprobs or self.finish_reason)


@dataclass(kw_only=True, slots=True)
class _Told:
    """A token's log probabilities and the length of the answer's text once all of the token's text is in it.

    ``end`` is unknown while the token may be a part of a character.
    """

    logprobs: TokenLogprobs
    start: int
    end: int | None = None


@dataclass(kw_only=True)
class Sample:
    """The text of one sample on its way."""

    tokenizer: Tokenizer
    prompt: Sequence[int]
    options: TextOptions
    num_tokens: int = 0
    finished: bool = False
    _made: int = 0  # characters decoded
    _shown: int = 0  # characters handed out
    _told: deque[_Told] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._detokenizer = self.tokenizer.detokenizer(self.prompt, keep_special=self.options.keep_special)
        self._cutter = StopCutter(self.options.stops, keep_stop=self.options.keep_stop)

    def add(self, output: Output) -> Delta:
        """What an engine's output adds. After a stop string the sample is ``finished``, whatever the engine says."""
        text = ""
        for position, token in enumerate(output.token_ids):
            self.num_tokens += 1
            is_end = token == output.stop_id and position == len(output.token_ids) - 1
            if is_end and not self.options.keep_stop and not self.options.keep_special:
                break
            text += self._add_token(token, output.logprobs[position] if output.logprobs else None)
            if self._cutter.found is not None:
                return self._end(text, "stop", self._cutter.found, output)
        if output.finish_reason is None:
            return self._delta(text, output=output)
        text += self._cutter.add(self._decoded(self._detokenizer.finish())) if self._stops_count else self._rest()
        if self._cutter.found is not None:
            return self._end(text, "stop", self._cutter.found, output)
        return self._end(text + self._cutter.finish(), output.finish_reason, output.stop_id, output)

    @property
    def _stops_count(self) -> bool:
        return self.num_tokens >= self.options.min_tokens

    def _add_token(self, token: int, logprobs: TokenLogprobs | None) -> str:
        if logprobs is not None:
            self._told.append(_Told(logprobs=logprobs, start=self._made))
        piece = self._decoded(self._detokenizer.add((token,)))
        return self._cutter.add(piece) if self._stops_count else self._cutter.add_past(piece)

    def _rest(self) -> str:
        return self._cutter.add_past(self._decoded(self._detokenizer.finish()))

    def _decoded(self, piece: str) -> str:
        if piece:
            self._made += len(piece)
            for told in reversed(self._told):
                if told.end is not None:
                    break
                told.end = self._made
        return piece

    def _delta(self, text: str, *, output: Output) -> Delta:
        self._shown += len(text)
        return Delta(text=text, logprobs=self._told_until(self._shown), prompt_logprobs=output.prompt_logprobs)

    def _end(self, text: str, reason: FinishReason, stop: str | int | None, output: Output) -> Delta:
        self.finished = True
        self._shown += len(text)
        cut = self._cutter.found is not None
        told = tuple(item.logprobs for item in self._told if not cut or item.start < self._shown)
        return Delta(
            text=text,
            logprobs=told,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=reason,
            stop_reason=stop,
        )

    def _told_until(self, shown: int) -> tuple[TokenLogprobs, ...]:
        ready: list[TokenLogprobs] = []
        while self._told and (end := self._told[0].end) is not None and end <= shown:
            ready.append(self._told.popleft().logprobs)
        return tuple(ready)
