"""One step as arrays: what the scheduler decided, laid out for the device. Numpy only; no jax.

What belongs to a running sequence is kept by its slot and written once, when the sequence gets the slot; a step then
only picks rows. So a step of many sequences costs little, and the arrays may go to other hosts as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tpuctl.engine.adapters import NONE, Adapters
from tpuctl.engine.bounds import BoundRow, biases, masks
from tpuctl.engine.rows import Rows, rows_of
from tpuctl.engine.sequence import Sequence, Work

EXPLAINED_ROWS = 64
"""Prompt tokens whose log probabilities are made at a time."""

UNKNOWN = -1
"""In place of a token that only the device knows yet: the one last drawn in its slot."""

_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A static shape of a step: tokens, and rows to draw from, one per sequence and per draft."""

    tokens: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledShape:
    """A shape that is ready, and what it took."""

    bucket: Bucket
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """What the arrays are as large as, beside the bucket."""

    max_running: int
    pages_per_sequence: int
    page_size: int
    scratch_page: int
    query_block: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBatch:
    """A step for the device, padded to its bucket.

    Attributes:
        tokens: Token ids, ``UNKNOWN`` for the last drawn in ``token_slots``.
        layout: The fields of ``attention.PagedLayout`` by name.
        last: Of each row, the token to draw from.
        slots: Of each row; past the last slot for rows that draw nothing. Which of several of a slot is kept for the
            next step does not matter: after drafts it takes none but tokens that the host knows.
        sampling: The fields of ``sampling.SamplingRows`` by name; ``bias*`` and ``allowed`` only where needed.
        counts: Slot → token counts to set before the step, for sequences new in their slot.
        adapters: Of each token, the index of its adapter; ``None`` for an engine that has none.
    """

    bucket: Bucket
    tokens: np.ndarray
    token_slots: np.ndarray
    positions: np.ndarray
    layout: dict[str, Any]
    last: np.ndarray
    slots: np.ndarray
    sampling: dict[str, Any]
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    adapters: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What a step made, per row. The fields after ``tokens`` are those of ``sampling.Explained``, if asked for."""

    tokens: np.ndarray
    logprob: np.ndarray | None = None
    rank: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


class StepRunner(Protocol):
    """What the engine drives: the runner of this host, or one that also tells the other hosts of the slice."""

    def warm_up(self) -> Iterator[CompiledShape]:
        """Compile every shape, one for each item."""
        ...

    def launch(self, batch: StepBatch) -> Any:
        """Start a step after those launched before; does not wait for it."""
        ...

    def fetch(self, launched: Any, *, explained: bool) -> StepResult:
        """Wait for a step and get its tokens, with log probabilities if ``explained``."""
        ...

    def explain(self, launched: Any, *, places: np.ndarray, targets: np.ndarray) -> StepResult:
        """Log probabilities of ``targets`` as predicted at tokens ``places`` of a step, up to ``EXPLAINED_ROWS``."""
        ...


class SlotTable:
    """What each slot's sequence brings to every step it is in."""

    def __init__(self, sizes: BatchSizes, *, eos_ids: tuple[int, ...], adapters: Adapters | None = None) -> None:
        self.sizes = sizes
        self._eos_ids = eos_ids
        self._adapters = adapters
        slots = sizes.max_running + 1  # the last is for padding
        self._tables = np.full((slots, sizes.pages_per_sequence), sizes.scratch_page, np.int32)
        self._num_pages = [0] * slots
        self._values = {name: np.zeros(slots, np.float32) for name in _FLOATS}
        self._top_k = np.zeros(slots, np.int32)
        self._seeds = np.zeros((slots, 2), np.uint32)
        self._cuts = np.zeros(slots, np.bool_)
        self._penalised = np.zeros(slots, np.bool_)
        self._explained = np.zeros(slots, np.bool_)
        self._adapter = np.full(slots, NONE, np.int32)
        self._bound: set[int] = set()  # slots with biases or a grammar: few, and so looked at one by one

    def batch(self, work: list[Work], *, bucket: Bucket) -> StepBatch:
        """The step's arrays.

        Args:
            work: Empty for a step that changes nothing, to compile it.
            bucket: At least as large as the work.
        """
        counts = {}
        for item in work:
            if item.fresh:
                self._admit(item.sequence)
                if item.sequence.request.sampling.has_penalties:
                    counts[_slot(item.sequence)] = _token_counts(item.sequence, self.sizes.vocab_size)
            self._extend_table(item.sequence)
        # Of each sequence there may be, and once more for padding.
        everyone = np.full(self.sizes.max_running + 1, self.sizes.max_running, np.int32)
        everyone[: len(work)] = [_slot(item.sequence) for item in work]
        tokens, token_slots, positions = self._tokens(work, bucket)
        layout = self._layout(work, everyone[:-1], (token_slots, positions))
        rows = rows_of(work, layout, count=bucket.rows)
        slots = everyone[rows.owners]
        return StepBatch(
            bucket=bucket,
            tokens=tokens,
            token_slots=token_slots,
            positions=positions,
            layout=layout,
            last=rows.tokens,
            slots=np.where(rows.draws, slots, self.sizes.max_running),
            sampling=self._sampling(work, slots, rows),
            counts=counts,
            adapters=None if self._adapters is None else self._adapter[token_slots],
        )

    def _admit(self, sequence: Sequence) -> None:
        slot, sampling = _slot(sequence), sequence.request.sampling
        self._num_pages[slot] = 0
        for name in _FLOATS:
            self._values[name][slot] = getattr(sampling, name)
        self._top_k[slot] = min(sampling.top_k, self.sizes.vocab_size)
        self._seeds[slot] = sequence.seed_words
        self._cuts[slot] = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
        self._penalised[slot] = sampling.has_penalties
        self._explained[slot] = sampling.logprobs is not None
        if self._adapters is not None:
            self._adapter[slot] = self._adapters.index(sequence.request.adapter)
        bound = bool(sampling.logit_bias) or sampling.min_tokens > 0 or sequence.grammar is not None
        (self._bound.add if bound else self._bound.discard)(slot)

    def _extend_table(self, sequence: Sequence) -> None:
        slot = _slot(sequence)
        known = self._num_pages[slot]
        if known != len(sequence.pages):
            self._tables[slot, known : len(sequence.pages)] = sequence.pages[known:]
            self._num_pages[slot] = len(sequence.pages)

    def _tokens(self, work: list[Work], bucket: Bucket) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens: list[int] = []
        positions: list[int] = []
        token_slots: list[int] = []
        for sequence, start, count, _, _, drafts in work:
            known = sequence.tokens
            if count == 1:
                tokens.append(known[start] if start < len(known) else UNKNOWN)
                positions.append(start)
                token_slots.append(_slot(sequence))
            else:
                own = [*known[start : start + count], *drafts]
                tokens += own if len(own) == count else [*own, UNKNOWN]
                positions += range(start, start + count)
                token_slots += [_slot(sequence)] * count
        arrays = np.zeros((3, bucket.tokens), np.int32)
        arrays[1] = self.sizes.max_running
        arrays[:, : len(tokens)] = tokens, token_slots, positions
        return arrays[0], arrays[1], arrays[2]

    def _layout(
        self, work: list[Work], slots: np.ndarray, tokens: tuple[np.ndarray, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Always for as many sequences as there may be, so that the layers' program depends on the tokens only."""
        token_slots, positions = tokens
        size = self.sizes.page_size
        lengths, ends = np.zeros(len(slots), np.int32), np.zeros(len(slots), np.int32)
        lengths[: len(work)] = [item.start + item.num_tokens for item in work]
        ends[: len(work)] = [item.num_tokens for item in work]
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(ends, dtype=np.int32)])
        pages = self._tables[token_slots, positions // size]
        blocks, num_wide, num_single = _blocks(work, (starts, positions), width=self.sizes.query_block)
        return {
            "tables": self._tables[slots],
            "starts": starts,
            "lengths": lengths,
            "places": pages * size + positions % size,
            "blocks": blocks,
            "counts": np.asarray([num_wide, len(work), num_single], np.int32),
        }

    def _sampling(self, work: list[Work], slots: np.ndarray, drawn: Rows) -> dict[str, np.ndarray]:
        live = slots[drawn.draws]
        rows: dict[str, Any] = {name: values[slots] for name, values in self._values.items()}
        rows |= {"top_k": self._top_k[slots], "seed": self._seeds[slots], "position": drawn.positions}
        rows |= {
            "drawn": (self._values["temperature"][live] > 0).any(),
            "cut": self._cuts[live].any(),
            "penalised": self._penalised[live].any(),
            "explained": self._explained[live].any(),
        }
        bound = [
            BoundRow(row=first + ahead, sequence=item.sequence, ahead=ahead)
            for item, first in zip(work, drawn.firsts, strict=True)
            if item.draws and item.sequence.slot in self._bound
            for ahead in range(item.num_rows)
        ]
        known = {"num_rows": len(slots), "vocab_size": self.sizes.vocab_size}
        return rows | biases(bound, **known, eos_ids=self._eos_ids) | masks(bound, **known)


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot


def _blocks(work: list[Work], layout: tuple[np.ndarray, np.ndarray], *, width: int) -> tuple[np.ndarray, int, int]:
    """The field ``blocks`` of ``attention.PagedLayout``, and how many there are of prompts and of one token.

    A draft's tokens are blocks of their own: there are few, and one of many would be computed at its whole width.
    """
    starts, positions = layout
    owners = np.repeat(np.arange(len(work)), np.asarray([item.num_tokens for item in work], np.int32))
    alone = np.asarray([item.num_tokens == 1 or bool(item.drafts) for item in work], np.bool_)
    wide = [
        (row, int(starts[row]) + offset, item.start + offset, min(width, item.num_tokens - offset))
        for row, item in enumerate(work)
        if not alone[row]
        for offset in range(0, item.num_tokens, width)
    ]
    single = np.flatnonzero(alone[owners])
    blocks = np.zeros((len(positions), 4), np.int32)
    blocks[: len(wide)] = wide or np.zeros((0, 4), np.int32)
    blocks[len(wide) : len(wide) + len(single)] = np.stack(
        [owners[single], single, positions[single], np.ones_like(single)], axis=1
    )
    return blocks, len(wide), len(single)


def _token_counts(sequence: Sequence, vocab_size: int) -> np.ndarray:
    made = np.bincount(sequence.tokens[sequence.num_prompt :], minlength=vocab_size)
    counts = 2 * made.astype(np.int32)
    counts[list(set(sequence.tokens[: sequence.num_prompt]))] += 1
    return counts
