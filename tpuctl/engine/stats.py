"""An engine's figures, for a progress line or for metrics. No jax."""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = ("prompt_tokens", "cached_tokens", "output_tokens", "draft_tokens", "accepted_tokens", "steps", "finished")
"""Those fields of ``EngineStats`` that the engine itself counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """Figures of this moment, and counts since the start.

    Attributes:
        running: Sequences that hold pages.
        waiting: Sequences that hold none yet, or none any more.
        num_pages: Pages there are.
        free_pages: Of these, neither in use nor holding a cached prefix.
        cached_pages: Not in use but holding a prefix; taken, the oldest first, when no page is free.
        prompt_tokens: Prompt tokens of samples that have begun to make tokens.
        cached_tokens: Of these, found in the prefix cache.
        output_tokens: Tokens made.
        draft_tokens: Drafts that tokens were held against.
        accepted_tokens: Of these, right: tokens made beside the one that each sequence makes in a step.
        preemptions: Times a sequence lost its pages to another and had to be computed again.
        steps: Steps run.
        finished: Samples ended, for whatever reason.
    """

    running: int
    waiting: int
    num_pages: int
    free_pages: int
    cached_pages: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    draft_tokens: int
    accepted_tokens: int
    preemptions: int
    steps: int
    finished: int
