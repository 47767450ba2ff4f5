"""What the next step computes: a few tokens of each running sequence, and whom to let in. No jax, no clock.

Every step is one ragged batch: each decoding sequence has one token in it, and what is left of the token budget goes
to prompts, cut in chunks where they are longer. Order is by priority, then first come first served. A sequence that
needs a page when there is none takes those of the last in order, which is computed again later; the first in order
is never a victim, so each in turn gets done.

The step before may still be on the device: a sequence's newest token is then *pending*, known to the device alone.
One whose newest token is known may have drafts in the step, out of what room is left; they are never in anyone's way.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.engine.drafting import Lookup
from tpuctl.engine.pages import PagePool
from tpuctl.engine.sequence import Sequence, Work

_WORTH = 4
"""Sequences that wait for each draft at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerOptions:
    """The sizes of ``EngineOptions`` that the scheduler goes by."""

    page_size: int
    max_running: int
    max_step_tokens: int
    max_rows: int
    max_length: int
    prefix_cache: bool = True
    speculate: int = 0


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
        if self.options.speculate and sequence.lookup is None and _may_be_drafted(sequence):
            sequence.lookup = Lookup(sequence.tokens)
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
        """The next step. It counts as computed from here on, but for drafts; empty if nothing can go on."""
        size = self.options.page_size
        for item in self._launched:
            if item.start % size + item.num_tokens >= size:  # it has filled a page
                self._seal(item.sequence)
        decodes, prompts = self._go_on()
        left = self.options.max_step_tokens - len(decodes) - sum(item.num_tokens for item in prompts)
        prompts.extend(self._let_in(left))
        if self.options.speculate:
            decodes = self._with_drafts(decodes, prompts)
        work = decodes + prompts
        for sequence, _, count, draws, _, drafts in work:
            sequence.num_computed += count - len(drafts)
            sequence.num_pending += draws
            sequence.drafted = bool(drafts)
        self._launched = work
        return work

    def wants_tokens(self) -> bool:
        """Whether the tokens of the step on the device promise so many drafts that the next should wait for them.

        The device stands still meanwhile, for all sequences. So it takes some that gain.
        """
        room = self.options.max_rows - len(self.running)
        if not self.options.speculate or room < 1:
            return False
        promise = 0
        for sequence in self.running:
            if sequence.lookup is not None:
                sequence.lookup.read()
                if sequence.num_output:
                    promise += min(sequence.lookup.promise, self.options.speculate)
        return 0 < len(self.running) <= min(promise, room) * _WORTH

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

    def _with_drafts(self, decodes: list[Work], prompts: list[Work]) -> list[Work]:
        """``decodes``, with drafts for those that have any, as many for each where there is no room for all."""
        taken = len(decodes) + sum(item.num_tokens for item in prompts)
        rows = len(decodes) + len(prompts)
        room = min(self.options.max_step_tokens - taken, self.options.max_rows - rows)
        if not room:
            return decodes
        promising = {place: most for place, item in enumerate(decodes) if (most := self._most_drafts(item.sequence))}
        left = len(promising)
        for place, most in promising.items():
            drafts = self._drafts(decodes[place].sequence, min(most, -(-room // left)))
            decodes[place] = decodes[place]._replace(num_tokens=1 + len(drafts), drafts=drafts)
            room -= len(drafts)
            left -= 1
        return decodes

    def _most_drafts(self, sequence: Sequence) -> int:
        """Drafts for a sequence whose next step is its newest token, if that is known: none beyond its end."""
        if sequence.lookup is None or sequence.num_pending:
            return 0
        sequence.lookup.read()
        return min(sequence.lookup.promise, self.options.speculate, sequence.end - sequence.length - 1)

    def _drafts(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """What its pages hold, and further ones that nobody misses: each running sequence is left one to grow into."""
        missing = self._pages_for(sequence.length + most) - len(sequence.pages)
        if 0 < missing <= self.pool.num_available - len(self.running):
            sequence.pages.extend(self.pool.allocate(missing) or ())
        at_hand = len(sequence.pages) * self.options.page_size - sequence.length
        assert sequence.lookup is not None
        return sequence.lookup.draft(min(most, at_hand))

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
    if sequence.num_pending and (sequence.drafted or sequence.grammar is not None):
        return False  # what may come next depends on a token that only the device knows
    return sequence.length < sequence.end


def _may_be_drafted(sequence: Sequence) -> bool:
    """Penalties and a grammar look at all tokens before the one to draw, of which drafts are none yet."""
    return sequence.grammar is None and not sequence.request.sampling.has_penalties


def _work(sequence: Sequence, count: int, *, fresh: bool = False) -> Work:
    draws = count == sequence.remaining
    return Work(sequence=sequence, start=sequence.num_computed, num_tokens=count, draws=draws, fresh=fresh)
