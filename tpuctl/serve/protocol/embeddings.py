"""``/v1/embeddings``: texts to vectors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tpuctl.serve.protocol.body import Body, checked
from tpuctl.serve.protocol.completions import Prompt, prompts_of, prompts_schema

MAX_INPUTS = 2048


def _inputs(value: Any) -> tuple[Prompt, ...]:
    found = prompts_of(value, most=MAX_INPUTS)
    if not all(found):
        raise ValueError("an empty text has no embedding")
    return found


class EmbeddingBody(Body):
    """A request to ``/v1/embeddings``."""

    model: str = Field(description="a name that `/v1/models` lists; another is answered 404")
    input: checked(tuple[Prompt, ...], _inputs, schema=prompts_schema(most=MAX_INPUTS, shortest=1)) = Field(  # type: ignore[valid-type]
        description="a text, token ids, or a list of either; each within the model's length"
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="numbers, or the bytes of little-endian float32 in base64"
    )
    dimensions: int | None = Field(
        None, ge=1, le=2**31 - 1, description="only the model's own: its vectors can't be cut short"
    )
    user: str | None = Field(None, description="goes to the request log and nowhere else")
