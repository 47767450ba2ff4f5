"""How much an engine holds and batches, and the static shapes that follow from it. No jax."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.engine.batch import Bucket

_FEW_ROWS = 8
_FEW_TOKENS = 32


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
        prefix_cache: Whether full pages are kept and shared by prompts that begin alike.
        eos_ids: Tokens that end every text unless ``ignore_eos``.
        real_vocab: Token ids that exist, if fewer than the model's rows; the others are never drawn.
        seed: Of the requests without one.
    """

    max_length: int
    num_pages: int
    page_size: int = 64
    max_running: int = 256
    max_step_tokens: int = 512
    min_step_tokens: int = 1
    prefix_cache: bool = True
    eos_ids: tuple[int, ...] = ()
    real_vocab: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that can't work.

        Raises:
            ValueError: A size below one, or fewer tokens than sequences in a step.
        """
        sizes = ("max_length", "num_pages", "page_size", "max_running", "max_step_tokens", "min_step_tokens")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_step_tokens < self.max_running:
            raise ValueError(f"max_step_tokens {self.max_step_tokens} is below max_running {self.max_running}")

    @property
    def pages_per_sequence(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_length // self.page_size)


def buckets(options: EngineOptions) -> list[Bucket]:
    """All shapes a step may have, the cheapest first.

    Steps that only decode have a row for each token: powers of two. Steps with prompts: powers of four in tokens, and
    in each few rows or all, since the head's product over rows that are padding would cost as much as a layer.
    """
    decoding = _powers(2, first=options.min_step_tokens, last=options.max_running)
    mixed = _powers(4, first=max(_FEW_TOKENS, options.min_step_tokens), last=options.max_step_tokens)
    few = max(_FEW_ROWS, options.min_step_tokens)
    shapes = {Bucket(tokens=n, rows=n, prompts=False) for n in decoding}
    shapes |= {Bucket(tokens=n, rows=min(rows, n), prompts=True) for n in mixed for rows in (few, decoding[-1])}
    return sorted(shapes, key=lambda shape: (shape.tokens, shape.rows, shape.prompts))


def smallest(shapes: list[Bucket], *, tokens: int, rows: int, prompts: bool) -> Bucket:
    """The cheapest of sorted shapes that holds this many."""
    return next(
        shape for shape in shapes if shape.tokens >= tokens and shape.rows >= rows and (shape.prompts or not prompts)
    )


def _powers(base: int, *, first: int, last: int) -> list[int]:
    """Multiples of ``first`` up to the first that is at least ``last``."""
    numbers = [first]
    while numbers[-1] < last:
        numbers.append(numbers[-1] * base)
    return numbers
