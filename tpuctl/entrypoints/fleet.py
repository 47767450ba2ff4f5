"""The replicas of a batch inference job: parts dealt to them as they get free, those of one that dies dealt again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.failures import task_reason
from tpuctl.entrypoints.infer_host import PARTS_AHEAD, HostFacts
from tpuctl.errors import CapacityError, HostLostError, JobFailedError, TpuctlError
from tpuctl.infer.dealer import Dealer
from tpuctl.infer.parts import Part
from tpuctl.infer.replica import Done
from tpuctl.plan.infer_schema import ReplicaPlace

POLL_SECONDS = 0.5
ASK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOptions:
    """``start`` makes the actor of a replica, which ``per`` host or slice there is one of; ``max_failures`` of them may
    die; ``start_seconds`` is what one may take to start."""

    start: Callable[[int], Any]
    per: ReplicaPlace
    replicas: int
    max_failures: int
    start_seconds: float


@dataclass(kw_only=True, slots=True)
class _Worker:
    """A replica's process: its actor, whether it has said that it can work, the parts it has, by their answers.

    ``underway`` are rows done of these parts, as it said when it was last asked; ``question`` is open.
    """

    number: int
    actor: Any
    since: float
    hello: Any
    ready: bool = False
    parts: dict[Any, Part] = field(default_factory=dict)
    underway: int = 0
    question: Any = None
    asked: float = 0.0


class Fleet:
    """Does parts on all replicas. Numbers of hosts count over all slices."""

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._failures = 0
        self._joined: set[int] = set()
        self._workers = {number: self._start(number) for number in range(options.replicas)}

    def run(self, parts: dict[int, Part], *, stop: Callable[[], bool]) -> Iterator[tuple[int, Done] | None]:
        """Host and outcome of each part as it is done, and None when nothing happened for a moment.

        Ends when all parts are done, or, once ``stop`` says so, when those that replicas have are.

        Raises:
            TpuctlError: a part failed for a reason; replicas died too often; none can be had.
        """
        dealer = Dealer(parts)
        while dealer.left or self.at_work:
            if stop():
                if not self.at_work:
                    return
            else:
                self._deal(dealer, parts)
            yield from self._settle(dealer)

    @property
    def at_work(self) -> bool:
        """Whether a replica has parts."""
        return any(worker.parts for worker in self._workers.values())

    @property
    def underway(self) -> dict[int, int]:
        """Rows that are done of parts that aren't, by replica."""
        return {worker.number: worker.underway for worker in self._workers.values() if worker.underway}

    def close(self) -> None:
        """End the replicas' processes."""
        for worker in self._workers.values():
            ray.kill(worker.actor)

    def _start(self, number: int) -> _Worker:
        actor = self._options.start(number)
        return _Worker(number=number, actor=actor, since=time.monotonic(), hello=actor.join.remote())

    def _deal(self, dealer: Dealer, parts: dict[int, Part]) -> None:
        """One part to each in turn, until all have enough: the last ones shall not all go to the first."""
        for _ in range(PARTS_AHEAD):
            ready = [worker for worker in self._workers.values() if worker.ready and len(worker.parts) < PARTS_AHEAD]
            for worker in sorted(ready, key=lambda worker: len(worker.parts)):
                index = dealer.deal(worker.number)
                if index is not None:
                    worker.parts[worker.actor.do.remote(parts[index])] = parts[index]

    def _settle(self, dealer: Dealer) -> Iterator[tuple[int, Done] | None]:
        self._ask()
        waiting = {ref: worker for worker in self._workers.values() for ref in self._answers(worker)}
        answered, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
        if not answered:
            self._check_starts()
            yield None
        for ref in answered:
            worker = waiting[ref]
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                self._take_failure(worker, dealer, task_reason(error))
                continue
            except ray.exceptions.RayError as error:
                self._take_loss(worker, dealer, f"its process died: {_first_line(error)}")
                continue
            if ref == worker.hello:
                self._join(worker, answer)
            elif ref == worker.question:
                worker.underway, worker.question = answer, None
            else:
                worker.underway = max(0, worker.underway - worker.parts.pop(ref).rows)
                yield worker.number, answer

    def _ask(self) -> None:
        """Ask those at work how far they are, now and then."""
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.parts and worker.question is None and now - worker.asked >= ASK_SECONDS:
                worker.question, worker.asked = worker.actor.underway.remote(), now

    @staticmethod
    def _answers(worker: _Worker) -> list[Any]:
        if not worker.ready:
            return [worker.hello]
        return list(worker.parts) if worker.question is None else [*worker.parts, worker.question]

    def _join(self, worker: _Worker, facts: HostFacts) -> None:
        worker.ready = True
        if worker.number not in self._joined:
            self._joined.add(worker.number)
            emit(
                "host",
                host=worker.number,
                hosts=self._options.replicas,
                per=self._options.per,
                pid=facts.pid,
                ip=facts.ip,
                devices=facts.devices,
                platform=facts.platform,
                simulated=facts.platform == "cpu",
            )

    def _take_failure(self, worker: _Worker, dealer: Dealer, error: TpuctlError) -> None:
        """A replica failed for a reason. One of a slice may have lost a host, or be waiting for one while others work.

        Raises:
            TpuctlError: the reason, which would come again.
        """
        if isinstance(error, HostLostError):
            self._take_loss(worker, dealer, error.message)
        elif isinstance(error, CapacityError) and any(other.ready for other in self._workers.values()):
            emit("note", text=f"{self._options.per} {worker.number}: {error.message}; it is waited for again")
            self._replace(worker)
        else:
            raise error

    def _take_loss(self, worker: _Worker, dealer: Dealer, why: str) -> None:
        """A replica is gone: its parts are free again, and another takes its place."""
        self._failures += 1
        what = f"{self._options.per} {worker.number}: {why}"
        if self._failures > self._options.max_failures:
            raise JobFailedError(f"{what}, the {self._failures}. loss in this job")
        for part in worker.parts.values():
            dealer.give_back(part.index)
        emit("note", text=f"{what}, with {len(worker.parts)} parts; restart {self._failures}, they are done again")
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        ray.kill(worker.actor)  # and with it the processes it has started
        self._workers[worker.number] = self._start(worker.number)

    def _check_starts(self) -> None:
        """Nobody at work and somebody overdue: nothing more would happen."""
        workers, latest = self._workers.values(), time.monotonic() - self._options.start_seconds
        overdue = [worker.number for worker in workers if not worker.ready and worker.since < latest]
        if overdue and not any(worker.ready for worker in workers):
            raise CapacityError(
                f"{self._options.per}s {overdue} did not start within {self._options.start_seconds:.0f} s",
                hint="has the slice been taken away? the same recipe again goes on from the parts that are done",
            )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no words"
