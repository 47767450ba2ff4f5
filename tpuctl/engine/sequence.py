"""One sample of a request on its way, and its part in a step. No jax."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tpuctl.engine.drafting import Lookup
from tpuctl.engine.pages import next_key, root_key
from tpuctl.engine.request import Grammar, Request


class Sequence:
    """One sample of a request on its way.

    ``drafted``: drafts of it are in flight, so that nobody knows how many tokens it will have. ``lookup`` of those that
    may have drafts.
    """

    def __init__(
        self, request: Request, *, index: int, arrival: int, max_length: int, seed_words: tuple[int, int] = (0, 0)
    ) -> None:
        self.request = request
        self.index = index
        self.seed_words = seed_words
        self.grammar: Grammar | None = (
            request.grammar if index == 0 or request.grammar is None else request.grammar.fork()
        )
        self.order = (request.priority, arrival, index)
        self.num_prompt = len(request.prompt)
        self.end = min(self.num_prompt + request.sampling.max_tokens, max_length)
        self.tokens = list(request.prompt)
        self.num_pending = 0
        self.num_computed = 0
        self.num_cached = 0
        self.pages: list[int] = []
        self.slot: int | None = None
        self.num_sealed = 0
        self.gone = False
        self.drafted = False
        self.lookup: Lookup | None = None
        self._keys = [root_key(request.adapter)]

    def __lt__(self, other: Sequence) -> bool:
        return self.order < other.order

    @property
    def length(self) -> int:
        """Tokens there are, the pending one included."""
        return len(self.tokens) + self.num_pending

    @property
    def num_output(self) -> int:
        """Tokens made so far, the pending one included."""
        return self.length - self.num_prompt

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next can be drawn."""
        return self.length - self.num_computed

    def settle(self, num_drafts: int) -> None:
        """Take note that a step is done in which so many drafts stood; its tokens are appended already."""
        self.num_pending -= 1
        self.drafted = False
        self.num_computed += num_drafts

    def keys(self, count: int, *, page_size: int) -> list[bytes]:
        """Keys of the first ``count`` pages, whose tokens must be known."""
        while len(self._keys) <= count:
            start = (len(self._keys) - 1) * page_size
            self._keys.append(next_key(self._keys[-1], self.tokens[start : start + page_size]))
        return self._keys[1 : count + 1]


class Work(NamedTuple):
    """One sequence's part in a step: ``num_tokens`` from the one at ``start`` and, if ``draws``, a new one.

    ``fresh``: its first since it got its slot. ``drafts`` are the last of its tokens, after each of which one is drawn,
    too. A tuple, since hundreds are made in each step.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    draws: bool
    fresh: bool = False
    drafts: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows to draw from that it takes up."""
        return 1 + len(self.drafts)


def seed_words(seed: int | None, index: int, unseeded: tuple[int, int]) -> tuple[int, int]:
    """The random key of a sample: of the request's seed if it has one, else of the engine's and of the arrival."""
    source = ("seed", seed, index) if seed is not None else ("arrival", *unseeded, index)
    digest = hashlib.blake2b(repr(source).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
