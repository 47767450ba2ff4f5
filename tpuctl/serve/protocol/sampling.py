"""The fields that completions and chats share: how to draw, when to stop, how to be answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tpuctl.engine.request import MAX_LOGIT_BIAS, MAX_SAMPLES, MAX_STOP_IDS
from tpuctl.serve.protocol.body import Body, checked, refused

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1024
_ID = re.compile(r"[0-9]{1,9}")
_MAX_SEED = 2**63 - 1
_MAX_INT32 = 2**31 - 1


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_STOPS_SCHEMA = {
    "anyOf": [_STOP, {"type": "array", "minItems": 1, "maxItems": MAX_STOPS, "items": _STOP}, {"type": "null"}]
}
_BIAS_SCHEMA = {
    "type": ["object", "null"],
    "maxProperties": MAX_LOGIT_BIAS,
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}


def _stops(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        raise ValueError("must be a text or a list of texts")
    if not 1 <= len(found) <= MAX_STOPS:
        raise ValueError(f"must hold 1 to {MAX_STOPS} texts, got {len(found)}")
    if not all(1 <= len(item) <= MAX_STOP_CHARACTERS for item in found):
        raise ValueError(f"each text must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(found)


def _bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"must be an object of at most {MAX_LOGIT_BIAS} token ids with their biases")
    for key, bias in value.items():
        if not _ID.fullmatch(str(key)):
            raise ValueError(f"{key!r} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {key} must be a number from -100 to 100, got {bias!r}")
    return {int(key): float(bias) for key, bias in value.items()}


class StreamOptions(Body):
    """What comes with a stream beside the answer."""

    include_usage: bool | None = Field(None, description="a last chunk with the token counts")
    include_obfuscation: refused("chunks are not padded", neutral=(False,)) = Field(  # type: ignore[valid-type]
        None, description="padding of chunks against eavesdroppers; true is refused"
    )


class SamplingFields(Body):
    """Fields of every request that makes text."""

    model: str = Field(description="a name that `/v1/models` lists; another is answered 404")
    temperature: float | None = Field(None, ge=0, le=2, description="0 takes the likeliest token; 1 if left out")
    top_p: float | None = Field(None, gt=0, le=1, description="draw among the likeliest with this sum")
    n: int | None = Field(None, ge=1, le=MAX_SAMPLES, description="samples, each with its index")
    seed: int | None = Field(
        None, ge=-_MAX_SEED - 1, le=_MAX_SEED, description="same seed, same request: same text, whatever else runs"
    )
    stop: checked(tuple[str, ...] | None, _stops, schema=_STOPS_SCHEMA) = Field(  # type: ignore[valid-type]
        None, description="texts that end the answer, not part of it; across token borders too"
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="off a logit for each time in the output")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="off a logit once in the output")
    logit_bias: checked(dict[int, float] | None, _bias, schema=_BIAS_SCHEMA) = Field(  # type: ignore[valid-type]
        None, description="token id to what is added to its logit, -100 to 100"
    )
    stream: bool | None = Field(None, description="server-sent events as the text is made")
    stream_options: StreamOptions | None = Field(None, description="only together with stream")
    user: str | None = Field(None, description="goes to the request log and nowhere else")

    top_k: int | None = Field(None, ge=-1, le=_MAX_INT32, description="draw among the k likeliest; 0 and -1: all")
    min_p: float | None = Field(None, ge=0, le=1, description="leave out tokens below this share of the likeliest")
    repetition_penalty: float | None = Field(None, gt=0, le=100, description="divides logits of tokens seen before")
    min_tokens: int | None = Field(None, ge=0, le=_MAX_INT32, description="no end before so many tokens")
    ignore_eos: bool | None = Field(None, description="go on past the end of text")
    stop_token_ids: tuple[int, ...] | None = Field(
        None, max_length=MAX_STOP_IDS, description="token ids that end the answer"
    )
    include_stop_str_in_output: bool | None = Field(None, description="keep the stop text")
    skip_special_tokens: bool | None = Field(None, description="false shows special tokens in the text")
    priority: int | None = Field(None, ge=-_MAX_INT32, le=_MAX_INT32, description="lower goes first")

    @property
    def samples(self) -> int:
        """How many answers to each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
