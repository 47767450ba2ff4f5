"""The engine: requests in, tokens out, one ragged step at a time. Knows no HTTP, no Ray and no text.

Not thread-safe: one thread adds, steps and aborts. Nothing here reads a clock or draws a number of its own, so
engines that are given the same calls in the same order do the same: hosts of a slice can each run one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.engine.request import Output, Request


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """How much the engine holds and batches; nothing here changes which tokens come out.

    Attributes:
        max_length: Tokens of a sequence at most, prompt and output.
        num_pages: KV pages; a page holds ``page_size`` tokens of all layers.
        page_size: Tokens per page, a power of two.
        max_running: Sequences in one step at most.
        max_step_tokens: Tokens computed in one step at most: prompts longer than what is free are cut in chunks.
        prefix_cache: Whether full pages are kept and shared by prompts that begin alike.
        eos_ids: Tokens that end every text unless ``ignore_eos``.
        real_vocab: Token ids that exist, if fewer than the model's rows; the others are never drawn.
        seed: Of the requests without one.
    """

    max_length: int
    num_pages: int
    page_size: int = 16
    max_running: int = 256
    max_step_tokens: int = 512
    prefix_cache: bool = True
    eos_ids: tuple[int, ...] = ()
    real_vocab: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """Figures of this moment, and counts since the start.

    Attributes:
        running: Sequences that hold pages.
        waiting: Sequences that hold none yet, or none any more.
        num_pages: Pages there are.
        free_pages: Of these, neither in use nor holding a cached prefix.
        cached_pages: Not in use but holding a prefix; taken, the oldest first, when no page is free.
        prompt_tokens: Prompt tokens computed.
        cached_tokens: Prompt tokens found in the cache instead.
        output_tokens: Tokens made.
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
    preemptions: int
    steps: int
    finished: int


class Engine:
    """Continuous batching over one model. Made by ``create_engine``."""

    def add_request(self, request: Request) -> None:
        """Queue a request; its tokens come from later ``step`` calls.

        Raises:
            RequestError: The id is in use, the prompt or the output can never fit, or a token id does not exist.
        """
        raise NotImplementedError

    def abort(self, request_id: str) -> bool:
        """End a request: its pages are free by the next step, and no more output comes of it.

        Returns:
            Whether the engine held it; an unknown id is no error, it may just have finished.
        """
        raise NotImplementedError

    def step(self) -> list[Output]:
        """Launch one step on the device and hand out what the one before it made.

        So a sequence's tokens come one call later than they were computed: call until ``has_work`` is false.
        """
        raise NotImplementedError

    def has_work(self) -> bool:
        """Whether ``step`` has anything to do, or to hand out."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Figures for a progress line or for metrics."""
        raise NotImplementedError
