"""A checked body to what is asked of the engine: prompts, how to sample, and how tokens become text."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from tpuctl.engine.request import Grammar, Request, RequestError, SamplingParams
from tpuctl.serve.protocol import ApiError
from tpuctl.serve.protocol.errors import of_engine, too_long
from tpuctl.serve.protocol.sampling import SamplingFields
from tpuctl.serve.sample import TextOptions
from tpuctl.serve.served import Served

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many tokens are to be made at most (None: what the context has left), and which fields are at fault if
    that or the prompt is too much."""

    max_tokens: int | None
    param: str
    prompt_param: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What an endpoint asks for beside the common fields; ``logprobs`` as ``SamplingParams`` has them."""

    limit: Limit
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """All of one HTTP request that concerns the engine. Sample ``i`` of prompt ``p`` is choice ``p * n + i``."""

    prompts: tuple[Ids, ...]
    requests: tuple[Request, ...]
    text: TextOptions
    samples: int = 1
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def prompt_of(self, choice: int) -> Ids:
        """The prompt that a choice goes on from."""
        return self.prompts[choice // self.samples]


def make_ask(body: SamplingFields, prompts: Sequence[Ids], *, served: Served, wanted: Wanted) -> Ask:
    """What a body asks of the engine.

    Each sample is a request of its own to the engine, so that one can end at a stop string while the others go on;
    the engine's prefix cache lets them share what they have in common.

    Raises:
        ApiError: More tokens than the context has, a token that does not exist, or fields that don't go together.
    """
    _check(body, served=served)
    request_id = uuid.uuid4().hex
    requests: list[Request] = []
    try:
        for prompt in prompts:
            sampling = _sampling(body, prompt, served=served, wanted=wanted)
            requests += [
                Request(
                    request_id=f"{request_id}-{len(requests) + sample}",
                    prompt=prompt,
                    sampling=_sample_of(sampling, sample),
                    priority=body.priority or 0,
                    adapter=served.adapter(body.model),
                    grammar=wanted.grammar if wanted.grammar is None else wanted.grammar.fork(),
                )
                for sample in range(body.samples)
            ]
    except RequestError as error:
        raise of_engine(error) from error
    return Ask(
        prompts=tuple(prompts),
        requests=tuple(requests),
        samples=body.samples,
        request_id=request_id,
        text=TextOptions(
            stops=body.stop or (),
            keep_stop=bool(body.include_stop_str_in_output),
            keep_special=body.skip_special_tokens is False,
            min_tokens=body.min_tokens or 0,
        ),
    )


def _check(body: SamplingFields, *, served: Served) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options goes together with stream", param="stream_options", code="invalid_value")
    for param, ids in (("logit_bias", body.logit_bias), ("stop_token_ids", body.stop_token_ids)):
        unknown = next((token for token in ids or () if not 0 <= token < served.vocab_size), None)
        if unknown is not None:
            message = f"{param}: token id {unknown} does not exist: the model has {served.vocab_size}"
            raise ApiError(message, param=param, code="invalid_value")


def _sampling(body: SamplingFields, prompt: Ids, *, served: Served, wanted: Wanted) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else float(body.top_p),
        min_p=float(body.min_p or 0.0),
        repetition_penalty=1.0 if body.repetition_penalty is None else float(body.repetition_penalty),
        frequency_penalty=float(body.frequency_penalty or 0.0),
        presence_penalty=float(body.presence_penalty or 0.0),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        max_tokens=_max_tokens(wanted.limit, prompt, max_length=served.max_length),
        min_tokens=body.min_tokens or 0,
        stop_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        logprobs=wanted.logprobs,
        prompt_logprobs=wanted.prompt_logprobs,
    )


def _max_tokens(limit: Limit, prompt: Ids, *, max_length: int) -> int:
    room = max_length - len(prompt)
    if room < 1:
        raise too_long(len(prompt), 0, max_length=max_length, param=limit.prompt_param)
    if limit.max_tokens is None:
        return room
    if limit.max_tokens > room:
        raise too_long(len(prompt), limit.max_tokens, max_length=max_length, param=limit.param)
    return max(1, limit.max_tokens)


def _sample_of(sampling: SamplingParams, sample: int) -> SamplingParams:
    """The parameters of one sample: with a seed that is its own, and the prompt's log probabilities only once."""
    if sample == 0:
        return sampling
    seed = None if sampling.seed is None else _derived_seed(sampling.seed, sample)
    return replace(sampling, seed=seed, prompt_logprobs=None)


def _derived_seed(seed: int, sample: int) -> int:
    digest = blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
