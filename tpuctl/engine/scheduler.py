"""What the next step computes: a few tokens of each running sequence, and whom to let in. No jax, no clock.

Every step is one ragged batch: each decoding sequence has one token in it, and what is left of the token budget goes
to prompts, cut in chunks where they are longer. Order is by priority, then first come first served. A sequence that
needs a page when there is none takes those of the last in order, which is computed again later; the first in order
is never a victim, so each in turn gets done.

The step before may still be on the device: a sequence's newest token is then *pending*, known to the device alone.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tpuctl.engine.pages import PagePool, next_key, root_key
from tpuctl.engine.request import Grammar, Request


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerOptions:
    """The sizes of ``EngineOptions`` that the scheduler goes by."""

    page_size: int
    max_running: int
    max_step_tokens: int
    max_length: int
    prefix_cache: bool = True


class Sequence:
    """One sample of a request on its way."""

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

    def keys(self, count: int, *, page_size: int) -> list[bytes]:
        """Keys of the first ``count`` pages, whose tokens must be known."""
        while len(self._keys) <= count:
            start = (len(self._keys) - 1) * page_size
            self._keys.append(next_key(self._keys[-1], self.tokens[start : start + page_size]))
        return self._keys[1 : count + 1]


class Work(NamedTuple):
    """One sequence's part in a step: ``num_tokens`` from the one at ``start`` and, if ``draws``, a new one.

    ``fresh``: its first since it got its slot. A tuple, since hundreds are made in each step.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    draws: bool
    fresh: bool = False


class Scheduler:
    """The sequences that wait and that run, and the pages and slots they hold."""

    def __init__(self, options: SchedulerOptions, *, pool: PagePool) -> None:
        self.options = options
        self.pool = pool
        self.num_preemptions = 0
        self.running: list[Sequence] = []  # in order
        self._waiting: list[Sequence] = []  # a heap; those gone are dropped when they come up
        self._num_waiting = 0
        self._free_slots = list(range(options.max_running - 1, -1, -1))
        self._launched: list[Work] = []

    @property
    def num_waiting(self) -> int:
        """Sequences without pages."""
        return self._num_waiting

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        heapq.heappush(self._waiting, sequence)
        self._num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, running or waiting; what it holds is free at once.

        A step on the device may still write to its pages: whoever gets them writes later than that.
        """
        if sequence.gone:
            return
        sequence.gone = True
        if sequence.slot is None:
            self._num_waiting -= 1
        else:
            self.running.remove(sequence)
            self._seal(sequence)
            self._free(sequence)

    def schedule(self) -> list[Work]:
        """The next step, decoding sequences first. It counts as computed from here on; empty if nothing can go on."""
        size = self.options.page_size
        for item in self._launched:
            if item.start % size + item.num_tokens >= size:  # it has filled a page
                self._seal(item.sequence)
        decodes, prompts = self._go_on()
        left = self.options.max_step_tokens - len(decodes) - sum(item.num_tokens for item in prompts)
        prompts.extend(self._let_in(left))
        prompts.sort(key=lambda item: item.num_tokens > 1)  # a prompt's last token is computed like a decoding one
        work = decodes + prompts
        for sequence, _, count, draws, _ in work:
            sequence.num_computed += count
            sequence.num_pending += draws
        self._launched = work
        return work

    def _go_on(self) -> tuple[list[Work], list[Work]]:
        """Work of the running sequences. A decoding one always has its token: prompts share what these leave."""
        decodes: list[Work] = []
        prompts: list[Sequence] = []
        for sequence in self.running.copy():
            if sequence.slot is None:
                break  # preempted, and so are all behind it
            remaining = sequence.remaining
            if remaining > 1:
                prompts.append(sequence)
            elif remaining and _can_go_on(sequence) and self._reserve(sequence, 1):
                decodes.append(_work(sequence, 1))
        return decodes, list(self._chunks(prompts, self.options.max_step_tokens - len(decodes)))

    def _chunks(self, sequences: list[Sequence], budget: int) -> Iterator[Work]:
        """They got pages for all their tokens when they were let in."""
        for sequence in sequences:
            if budget > 0 and sequence.slot is not None:
                count = min(sequence.remaining, budget)
                budget -= count
                yield _work(sequence, count)

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Pages for so many more tokens, at the cost of those last in order; ``False`` if it was the last itself."""
        missing = self._pages_for(sequence.num_computed + count) - len(sequence.pages)
        if missing <= 0:
            return True
        while missing > self.pool.num_available:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages.extend(self.pool.allocate(missing) or ())
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._free(sequence)
        sequence.num_computed = 0
        self.add(sequence)

    def _let_in(self, budget: int) -> Iterator[Work]:
        while budget > 0 and self._free_slots and (sequence := self._first_waiting()) is not None:
            if sequence.num_pending or not self._take_first_pages(sequence):
                return  # it keeps its place: whoever came later must not overtake it for ever
            heapq.heappop(self._waiting)
            self._num_waiting -= 1
            sequence.slot = self._free_slots.pop()
            insort(self.running, sequence)
            count = min(sequence.remaining, budget)
            budget -= count
            yield _work(sequence, count, fresh=True)

    def _first_waiting(self) -> Sequence | None:
        while self._waiting and self._waiting[0].gone:
            heapq.heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    def _take_first_pages(self, sequence: Sequence) -> bool:
        """Pages for all its tokens, cached ones where known. Each running sequence must be left one to grow into, or
        the newcomer would soon be a victim."""
        known = self._known_prefix(sequence)
        missing = self._pages_for(sequence.length) - len(known)
        available = self.pool.num_available - self.pool.num_cached_among(known)
        if missing + len(self.running) > available:
            return False
        self.pool.share(known)
        sequence.pages = known + (self.pool.allocate(missing) or [])
        sequence.num_sealed = len(known)
        sequence.num_computed = len(known) * self.options.page_size
        if not sequence.num_output:
            sequence.num_cached = sequence.num_computed
        return True

    def _known_prefix(self, sequence: Sequence) -> list[int]:
        if not self.options.prefix_cache or sequence.request.sampling.prompt_logprobs is not None:
            return []
        full = (sequence.length - 1) // self.options.page_size  # the last token is computed, to draw the next from
        return self.pool.find(sequence.keys(full, page_size=self.options.page_size))

    def _seal(self, sequence: Sequence) -> None:
        """Let others find the pages whose tokens are all computed and known."""
        full = min(sequence.num_computed, len(sequence.tokens)) // self.options.page_size
        if not self.options.prefix_cache or sequence.slot is None or full <= sequence.num_sealed:
            return
        keys = sequence.keys(full, page_size=self.options.page_size)
        for page in range(sequence.num_sealed, full):
            self.pool.seal(sequence.pages[page], keys[page])
        sequence.num_sealed = full

    def _free(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot = None
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_sealed = 0

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.options.page_size)


def _can_go_on(sequence: Sequence) -> bool:
    if sequence.grammar is not None and sequence.num_pending:
        return False  # what may come next depends on a token that only the device knows
    return sequence.length < sequence.end


def _work(sequence: Sequence, count: int, *, fresh: bool = False) -> Work:
    draws = count == sequence.remaining
    return Work(sequence=sequence, start=sequence.num_computed, num_tokens=count, draws=draws, fresh=fresh)
