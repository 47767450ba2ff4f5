"""What is asked of the engine and what comes back: token ids, how to sample, and why it ended. No jax.

Everything is checked on construction, so that no bad value ever reaches a batch that others share. What depends on
the model (vocabulary, context length) is checked by the engine when the request is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Int32

from tpuctl.errors import TpuctlError

FinishReason = Literal["stop", "length", "abort"]

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_STOP_IDS = 64
MAX_SAMPLES = 128
_MAX_SEED = 2**63 - 1


class RequestError(TpuctlError):
    """A request that can't be served as it stands. ``param`` is the field at fault."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class Grammar(Protocol):
    """What a structured output may go on with. Stateful, one per sample; driven on the host, token by token."""

    def mask(self) -> Int32[np.ndarray, " words"]:
        """The tokens allowed next: bit ``i % 32`` of word ``i // 32`` stands for token ``i``."""
        ...

    def accept(self, token: int) -> None:
        """Go on past a token that was sampled under the mask.

        Raises:
            RequestError: There is no way on; the sample then ends with ``abort``.
        """
        ...

    def fork(self) -> Grammar:
        """A grammar of its own at the same place, for another sample of the request."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. The defaults draw from the model's distribution as it is.

    Penalties are applied first, then ``logit_bias``, then temperature, then ``min_p``, ``top_k`` and ``top_p``, each
    on what the one before has left.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: Draw among the k likeliest; 0 among all.
        top_p: Draw among the fewest tokens that together have this probability (Holtzman et al. 2020).
        min_p: Leave out tokens less likely than this share of the likeliest one's probability.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the prompt or the output.
        frequency_penalty: Taken off a token's logit for each time it is in the output.
        presence_penalty: Taken off a token's logit if it is in the output.
        logit_bias: Token id → added to its logit.
        seed: Same seed, same prompt, same parameters: same tokens, whatever shares the batch. ``None``: the engine's
            choice, another for each request.
        max_tokens: Tokens to make at most.
        min_tokens: Stop ids and the end of text can't be drawn before this many.
        stop_ids: End the output; the one drawn is part of it.
        ignore_eos: Go on past the model's end of text. Stop ids still stop.
        logprobs: With each token its log probability and those of so many likeliest; of the model's own distribution,
            before penalties and temperature.
        prompt_logprobs: The same for the prompt's tokens, which then is not read from the prefix cache.
        n: Samples of the same prompt.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            RequestError: Names the first parameter at fault.
        """
        for param, bounds in _NUMBERS.items():
            bounds.check(param, getattr(self, param))
        for param, range_ in _COUNTS.items():
            range_.check(param, getattr(self, param))
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos must be true or false, got {self.ignore_eos!r}", param="ignore_eos")
        if self.min_tokens > self.max_tokens:
            got = f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}"
            raise RequestError(got, param="min_tokens")
        _check_ids("stop_ids", self.stop_ids, at_most=MAX_STOP_IDS)
        _check_ids("logit_bias", list(self.logit_bias), at_most=MAX_LOGIT_BIAS)
        for bias in self.logit_bias.values():
            _BIAS.check("logit_bias", bias)

    @property
    def has_penalties(self) -> bool:
        """Whether a token's logit depends on the tokens before it by more than the model."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to go on from.

    Attributes:
        request_id: Unique among the requests the engine holds.
        prompt: Token ids, at least one.
        sampling: How to go on.
        priority: Lower goes first; among equals, first come first served.
        adapter: Name of a loaded LoRA adapter; ``None`` for the model itself.
        grammar: What the output may be; ``None`` for anything.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    adapter: str | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        """Refuse an empty prompt and what is not a token id.

        Raises:
            RequestError: ``param`` is ``prompt`` or ``priority``.
        """
        if not self.prompt:
            raise RequestError("the prompt has no tokens", param="prompt")
        _check_ids("prompt", self.prompt, at_most=None)
        _PRIORITY.check("priority", self.priority)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprobs:
    """Log probabilities (natural) at one position: the token's, its rank from 1, and the likeliest, best first."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(kw_only=True, slots=True)
class Output:
    """What one step added to one sample of a request. (Not frozen: hundreds are made in each step.)

    Attributes:
        request_id: The request's.
        index: Which of its ``n`` samples.
        token_ids: New tokens, in order; may be empty where only the end is told.
        logprobs: One per new token if asked for, else empty.
        prompt_logprobs: Once, with the first tokens: one per prompt token but the first, for which there is no
            prediction; empty if not asked for.
        finish_reason: Set in a sample's last output: ``stop`` (a stop id or the end of text), ``length``
            (``max_tokens`` or the context is full), ``abort`` (its grammar could not go on).
        stop_id: The token that stopped it.
        cached_tokens: Prompt tokens whose keys and values were found in the prefix cache.
    """

    request_id: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_id: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Number:
    low: float
    high: float = math.inf
    low_open: bool = False

    def check(self, param: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if is_number and self.low <= value <= self.high and not (self.low_open and value == self.low):
            return
        bounds = f"above {self.low:g}" if self.low_open else f"at least {self.low:g}"
        upper = "" if math.isinf(self.high) else f" and at most {self.high:g}"
        raise RequestError(f"{param} must be a finite number {bounds}{upper}, got {value!r}", param=param)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Count:
    low: int
    high: int
    optional: bool = False

    def check(self, param: str, value: Any) -> None:
        if value is None and self.optional:
            return
        if isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high:
            return
        raise RequestError(f"{param} must be a whole number from {self.low} to {self.high}, got {value!r}", param=param)


_NUMBERS = {
    "temperature": _Number(low=0.0),
    "top_p": _Number(low=0.0, high=1.0, low_open=True),
    "min_p": _Number(low=0.0, high=1.0),
    "repetition_penalty": _Number(low=0.0, low_open=True),
    "frequency_penalty": _Number(low=-2.0, high=2.0),
    "presence_penalty": _Number(low=-2.0, high=2.0),
}
_MAX_INT32 = 2**31 - 1
_COUNTS = {
    "top_k": _Count(low=0, high=_MAX_INT32),
    "max_tokens": _Count(low=1, high=_MAX_INT32),
    "min_tokens": _Count(low=0, high=_MAX_INT32),
    "seed": _Count(low=-_MAX_SEED - 1, high=_MAX_SEED, optional=True),
    "logprobs": _Count(low=0, high=MAX_LOGPROBS, optional=True),
    "prompt_logprobs": _Count(low=0, high=MAX_LOGPROBS, optional=True),
    "n": _Count(low=1, high=MAX_SAMPLES),
}
_BIAS = _Number(low=-100.0, high=100.0)
_PRIORITY = _Count(low=-_MAX_INT32, high=_MAX_INT32)


def _check_ids(param: str, ids: Sequence[Any], *, at_most: int | None) -> None:
    if at_most is not None and len(ids) > at_most:
        raise RequestError(f"{param} takes at most {at_most} token ids, got {len(ids)}", param=param)
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= _MAX_INT32:
            raise RequestError(f"{param} must hold token ids, got {token!r}", param=param)
