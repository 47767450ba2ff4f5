"""How much an engine holds and batches, and the static shapes that follow from it. No jax."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.engine.adapters import Adapters
from tpuctl.engine.batch import Bucket

_FEW_ROWS = 8
# Of a single token XLA on CPU has no fast product in bf16, and copies all pages to write it; a TPU computes eight.
_LEAST_TOKENS = 2
_DRAFT_ROWS = 64
"""Rows that drafts may fill up to, however few sequences may run: on a TPU they still cost next to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Nothing here changes which tokens come out, but for ``eos_ids``, ``real_vocab`` and ``seed``.

    Attributes:
        max_length: Tokens of a sequence at most, prompt and output.
        num_pages: KV pages; a page holds ``page_size`` tokens of all layers.
        page_size: Tokens per page. TPU kernels want 128; smaller pages share more of a prefix.
        max_running: Sequences in one step at most.
        max_step_tokens: Tokens computed in one step at most: prompts longer than what is free are cut in chunks.
        min_step_tokens: The smallest shape compiled; smaller steps are padded to it.
        speculate: Draft tokens of a sequence in one step at most; 0 for no drafts.
        prefix_cache: Whether full pages are kept and shared by prompts that begin alike.
        eos_ids: Tokens that end every text unless ``ignore_eos``.
        real_vocab: Token ids that exist, if fewer than the model's rows; the others are never drawn.
        seed: Of the requests without one.
        adapters: Those that requests may name; ``None`` for no such thing, in the compiled step neither.
    """

    max_length: int
    num_pages: int
    page_size: int = 64
    max_running: int = 256
    max_step_tokens: int = 512
    min_step_tokens: int = 1
    speculate: int = 0
    prefix_cache: bool = True
    eos_ids: tuple[int, ...] = ()
    real_vocab: int | None = None
    seed: int = 0
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that can't work.

        Raises:
            ValueError: A size below one, fewer tokens than sequences in a step, or fewer drafts than none.
        """
        sizes = ("max_length", "num_pages", "page_size", "max_running", "max_step_tokens", "min_step_tokens")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.speculate < 0:
            raise ValueError(f"speculate must be at least 0, got {self.speculate}")
        if self.max_step_tokens < self.max_running:
            raise ValueError(f"max_step_tokens {self.max_step_tokens} is below max_running {self.max_running}")

    @property
    def pages_per_sequence(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_length // self.page_size)

    @property
    def max_rows(self) -> int:
        """Rows to draw from in one step at most: one of each sequence, and one more after each draft."""
        drawn = min(self.max_running * (1 + self.speculate), _DRAFT_ROWS, self.max_step_tokens)
        return max(self.max_running, drawn)

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The adapters that requests may name."""
        return () if self.adapters is None else self.adapters.names


def buckets(options: EngineOptions) -> list[Bucket]:
    """All shapes a step may have, the cheapest first.

    Tokens come in few sizes, since what is cheap is weights read once: up to 32 tokens a step takes about the same
    time. For each there are few rows or all, since the head's product over rows of padding costs as much as a layer.
    """
    least = max(_LEAST_TOKENS, options.min_step_tokens)
    rows = _sizes(first=least, last=options.max_rows)
    few = _FEW_ROWS if _FEW_ROWS in rows else rows[0]
    shapes = {
        Bucket(tokens=tokens, rows=min(most, tokens))
        for tokens in _sizes(first=least, last=options.max_step_tokens)
        for most in (few, rows[-1])
    }
    return sorted(shapes, key=lambda shape: (shape.tokens, shape.rows))


def smallest(shapes: list[Bucket], *, tokens: int, rows: int) -> Bucket:
    """The cheapest of sorted shapes that holds this many."""
    return next(shape for shape in shapes if shape.tokens >= tokens and shape.rows >= rows)


def _sizes(*, first: int, last: int) -> list[int]:
    """``first``, then powers of two from 8 but for 16, and ``last``; multiples of ``first`` all of them."""
    most = -(-last // first) * first
    powers = [size for size in (8, *(1 << n for n in range(5, most.bit_length()))) if size % first == 0]
    return [first, *(size for size in powers if first < size < most), *([most] if most > first else [])]
