"""How much an engine holds and batches, and the static shapes that follow from it. No jax."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.engine.batch import Bucket

_FEW_ROWS = 8


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
    """All shapes a step may have, the cheapest first: powers of two in tokens, and in each few rows or many.

    Steps that only decode have a row for each token. In a step with prompts the head's product over rows that are
    padding would cost as much as a layer, so there is a shape for few sequences, too.
    """
    lengths = [options.min_step_tokens]
    while lengths[-1] < options.max_step_tokens:
        lengths.append(min(2 * lengths[-1], options.max_step_tokens))
    few = max(_FEW_ROWS, options.min_step_tokens)
    most = min(length for length in lengths if length >= options.max_running)
    shapes = {Bucket(tokens=n, rows=rows) for n in lengths for rows in (few, n, most) if rows <= min(n, most)}
    return sorted(shapes, key=lambda shape: (shape.tokens, shape.rows))


def smallest(shapes: list[Bucket], *, tokens: int, rows: int) -> Bucket:
    """The cheapest of sorted shapes that holds this many."""
    return next(shape for shape in shapes if shape.tokens >= tokens and shape.rows >= rows)
