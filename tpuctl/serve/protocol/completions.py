"""``/v1/completions``: a prompt to go on from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tpuctl.engine.request import MAX_LOGPROBS
from tpuctl.serve.protocol.body import checked, refused
from tpuctl.serve.protocol.sampling import SamplingFields

MAX_PROMPTS = 1024
_MAX_INT32 = 2**31 - 1

Prompt = str | tuple[int, ...]

_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": _MAX_INT32}}


def prompts_schema(*, most: int, shortest: int = 0) -> dict[str, Any]:
    """What ``prompts_of`` takes, as a JSON schema."""
    text = {"type": "string", "minLength": shortest}
    several = [{"type": "array", "minItems": 1, "maxItems": most, "items": item} for item in (text, _IDS)]
    return {"anyOf": [text, _IDS, *several]}


def prompts_of(value: Any, *, most: int = MAX_PROMPTS) -> tuple[Prompt, ...]:
    """All four forms: a text, token ids, a list of texts, a list of lists of token ids; ``ValueError`` of others."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a text, a list of texts, a list of token ids or a list of such lists")
    if _are_ids(value):
        return (tuple(value),)
    if len(value) > most:
        raise ValueError(f"at most {most} texts in a request, got {len(value)}")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list | tuple) and item and _are_ids(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise ValueError("must be a text, a list of texts, a list of token ids or a list of such lists")


def _are_ids(value: Any) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_INT32 for item in value)


class CompletionBody(SamplingFields):
    """A request to ``/v1/completions``."""

    prompt: checked(tuple[Prompt, ...], prompts_of, schema=prompts_schema(most=MAX_PROMPTS)) = Field(  # type: ignore[valid-type]
        description="a text, token ids, or a list of either"
    )
    max_tokens: int | None = Field(
        None, ge=0, le=_MAX_INT32, description="tokens to make at most; 16 if left out; 0 only with echo"
    )
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="log probabilities of each token and of so many likeliest"
    )
    echo: bool | None = Field(None, description="the prompt before the answer, with its log probabilities if asked")
    best_of: int | None = Field(None, ge=1, description="only equal to n: nothing is made and thrown away")
    suffix: refused("text can't be inserted before a suffix", neutral=("",)) = Field(  # type: ignore[valid-type]
        None, description="refused: the models served here don't insert"
    )
    add_special_tokens: bool | None = Field(None, description="false leaves the prompt without its begin-of-text")
