"""The scheduler driven by a toy model: a sequence's next token is a function of the tokens before it."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tpuctl.engine.drafting import standing
from tpuctl.engine.pages import PagePool
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.engine.scheduler import Scheduler, SchedulerOptions
from tpuctl.engine.sequence import Sequence, Work


def next_token(tokens: list[int], words: int) -> int:
    return (sum(tokens) * 31 + len(tokens)) % words


class CheckedPool(PagePool):
    """Takes note of what is written to each page, and refuses to seal one that is not full."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        super().__init__(num_pages)
        self.written: list[list[int | None]] = [[None] * page_size for _ in range(num_pages)]

    def allocate(self, count: int) -> list[int] | None:
        pages = super().allocate(count)
        for page in pages or ():
            self.written[page] = [None] * len(self.written[page])
        return pages

    def seal(self, page: int, key: bytes) -> None:
        assert None not in self.written[page], "an unfinished page would be shared"
        super().seal(page, key)


class ToyModel:
    """Runs what the scheduler says, one step behind where that does not want the tokens, on pages that remember which
    tokens were written to them. It knows few ``words``, or many: with few it repeats itself."""

    def __init__(self, *, num_pages: int = 64, page_size: int = 4, words: int = 97, **options: Any) -> None:
        sizes = {"max_running": 8, "max_step_tokens": 16, "max_rows": 16, "max_length": 200, **options}
        self.pool = CheckedPool(num_pages, page_size)
        self.scheduler = Scheduler(SchedulerOptions(page_size=page_size, **sizes), pool=self.pool)
        self.page_size = page_size
        self.words = words
        self.num_drafts = self.num_standing = 0
        self.live: list[Sequence] = []
        self.done: dict[str, list[int]] = {}
        self.in_flight: list[tuple[Work, list[int]]] = []
        self.seconds: list[float] = []
        self._arrivals = 0

    def add(self, prompt: list[int], *, max_tokens: int = 5, name: str | None = None, priority: int = 0) -> Sequence:
        request = Request(
            request_id=name or str(self._arrivals),
            prompt=tuple(prompt),
            sampling=SamplingParams(max_tokens=max_tokens),
            priority=priority,
        )
        sequence = Sequence(request, index=0, arrival=self._arrivals, max_length=self.scheduler.options.max_length)
        self._arrivals += 1
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def step(self) -> list[Work]:
        if self.scheduler.wants_tokens():
            self._collect()
        held = {sequence: len(sequence.pages) for sequence in self.scheduler.running}
        began = time.perf_counter()
        work = self.scheduler.schedule()
        self.seconds.append(time.perf_counter() - began)
        for item in work:
            needed = -(-(item.start + 1) // self.page_size)
            if item.drafts and len(item.sequence.pages) > max(needed, held[item.sequence]):
                assert self.pool.num_available >= len(self.scheduler.running), "a page for drafts that others will miss"
        launched = [(item, self._compute(item)) for item in work]
        self._collect()
        self.in_flight = launched
        return work

    def run(self, *, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.live and not self.in_flight:
                return
            self.step()
        raise AssertionError(f"{len(self.live)} sequences not done after {limit} steps")

    def _compute(self, item: Work) -> list[int]:
        sequence = item.sequence
        pending = [drawn[0] for flown, drawn in self.in_flight if flown.draws and flown.sequence is sequence]
        assert not (pending and item.drafts), "drafts go on from a token that nobody knows"
        assert not item.fresh or not pending, "a slot's last token is not the new owner's"
        tokens = [*sequence.tokens, *pending, *item.drafts]
        for place in range(item.start, item.start + item.num_tokens):
            self.pool.written[sequence.pages[place // self.page_size]][place % self.page_size] = tokens[place]
        end = item.start + item.num_tokens
        read = [self.pool.written[sequence.pages[i // self.page_size]][i % self.page_size] for i in range(end)]
        assert read == tokens[:end], "a sequence reads what is not its own"
        assert end < sequence.end or not item.drafts, "a draft for a token that is never made"
        first = end - len(item.drafts)
        return [next_token(tokens[:length], self.words) for length in range(first, end + 1)]

    def _collect(self) -> None:
        for item, drawn in self.in_flight:
            sequence = item.sequence
            if sequence.gone or not item.draws:
                continue
            tokens = standing(item.drafts, drawn)
            sequence.tokens += tokens
            sequence.settle(len(tokens) - 1)
            self.num_drafts += len(item.drafts)
            self.num_standing += len(tokens) - 1
            if len(sequence.tokens) == sequence.end:
                self.scheduler.remove(sequence)
                self.live.remove(sequence)
                self.done[sequence.request.request_id] = sequence.tokens
        self.in_flight = []


def expected(prompt: list[int], max_tokens: int, *, words: int = 97) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, words))
    return tokens


def test_schedule_long_prompt_is_cut_in_chunks_of_the_budget() -> None:
    model = ToyModel()
    model.add(list(range(40)))
    counts = [[(item.start, item.num_tokens, item.draws) for item in model.step()] for _ in range(4)]
    assert counts == [[(0, 16, False)], [(16, 16, False)], [(32, 8, True)], [(40, 1, True)]]


def test_schedule_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    model = ToyModel()
    model.add([1, 2], max_tokens=20)
    model.step()
    model.add(list(range(100)), max_tokens=1)
    for _ in range(6):
        work = model.step()
        assert (work[0].num_tokens, work[1].num_tokens) == (1, 15)


def test_schedule_one_token_short_of_the_end_is_not_overrun() -> None:
    model = ToyModel(max_length=10)
    model.add(list(range(8)), max_tokens=50)
    model.run()
    assert len(model.done["0"]) == 10


def test_schedule_urgent_request_overtakes_those_waiting() -> None:
    model = ToyModel(max_running=1)
    for name, priority in (("first", 0), ("late", 5), ("urgent", -1)):
        model.add([1, 2, 3], name=name, priority=priority)
        if name == "first":
            model.step()
    model.run()
    assert list(model.done) == ["first", "urgent", "late"]


def test_schedule_few_pages_preempts_the_last_and_all_get_done() -> None:
    model = ToyModel(num_pages=10)
    prompts = [[i, i + 1, i + 2] for i in range(6)]
    for prompt in prompts:
        model.add(prompt, max_tokens=30)
    model.run()
    assert model.scheduler.num_preemptions > 0
    assert [model.done[str(i)] for i in range(6)] == [expected(prompt, 30) for prompt in prompts]
    assert next(iter(model.done)) == "0"
    assert model.pool.num_available == 10


def test_schedule_stream_of_newcomers_does_not_starve_the_first() -> None:
    model = ToyModel(num_pages=8, max_running=4)
    model.add([1] * 12, max_tokens=18, name="long")
    for _ in range(60):
        model.add([2, 3], max_tokens=4)
        model.step()
        if "long" in model.done:
            return
    raise AssertionError("the first request is starved")


def test_prefix_same_prompt_again_computes_only_its_last_page() -> None:
    model = ToyModel()
    prompt = list(range(16))
    model.add(prompt)
    model.run()
    again = model.add(prompt)
    work = model.step()
    assert (work[0].start, work[0].num_tokens, again.num_cached) == (12, 4, 12)
    model.run()
    assert model.done["0"] == model.done["1"]


def test_prefix_not_shared_before_it_is_computed() -> None:
    model = ToyModel(max_step_tokens=8)
    model.add(list(range(16)))
    model.step()
    second = model.add(list(range(16)))
    model.step()
    model.step()
    assert second.num_cached <= 16
    model.run()  # _compute checks what every step reads
    assert model.done["0"] == model.done["1"]


def test_remove_while_waiting_running_or_in_flight_frees_all() -> None:
    model = ToyModel(max_running=1)
    running, waiting = model.add([1, 2, 3]), model.add([4, 5, 6])
    model.step()
    for sequence in (running, waiting):
        model.scheduler.remove(sequence)
        model.scheduler.remove(sequence)
    assert (model.pool.num_available, model.scheduler.num_waiting, model.scheduler.running) == (64, 0, [])
    assert model.scheduler.schedule() == []


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("prefix_cache", "speculate"), [(True, 0), (False, 0), (True, 4)], ids=["cache", "no-cache", "drafts"]
)
def test_random_lives_with_aborts_give_the_right_tokens_and_leak_nothing(
    seed: int, prefix_cache: bool, speculate: int
) -> None:
    rng = random.Random(seed)
    model = ToyModel(
        num_pages=rng.randint(12, 30),
        words=rng.choice([2, 3]) if speculate else 97,
        max_running=5,
        max_step_tokens=9,
        max_rows=9,
        max_length=48,
        prefix_cache=prefix_cache,
        speculate=speculate,
    )
    wanted: dict[str, list[int]] = {}
    for i in range(200):
        prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
        count = rng.randint(1, 20)
        model.add(prompt, max_tokens=count, name=str(i), priority=rng.choice([0, 0, 0, 1, -1]))
        wanted[str(i)] = expected(prompt, count, words=model.words)
        for _ in range(rng.randint(0, 4)):
            work = model.step()
            assert sum(item.num_tokens for item in work) <= 9
            assert sum(item.num_rows for item in work) <= 9
        if model.live and rng.random() < 0.3:
            victim = rng.choice(model.live)
            model.live.remove(victim)
            model.scheduler.remove(victim)
            del wanted[victim.request.request_id]
    model.run()
    assert model.done == wanted
    assert model.pool.num_available == model.pool.num_pages
    assert len(model.scheduler._free_slots) == 5
    if not prefix_cache:
        assert model.pool.num_cached == 0
    if speculate:
        assert 0 < model.num_standing < model.num_drafts


def test_drafts_are_shared_out_where_there_is_no_room_for_all() -> None:
    model = ToyModel(num_pages=200, words=1, max_rows=14, speculate=4)
    for _ in range(4):
        model.add([0] * 9, max_tokens=60)
    steps = [[len(item.drafts) for item in model.step()] for _ in range(8)]
    assert [3, 3, 2, 2] in steps
    assert max(map(sum, steps)) == 10


def test_schedule_cost_does_not_grow_with_those_waiting() -> None:
    def seconds(waiting: int) -> float:
        model = ToyModel(num_pages=4096, max_running=64, max_step_tokens=64)
        for _ in range(64 + waiting):
            model.add([1, 2, 3], max_tokens=150)
        for _ in range(35):
            model.step()
        return min(model.seconds[5:])

    assert seconds(4096) < 3 * seconds(16)
