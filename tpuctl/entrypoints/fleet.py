"""The hosts of a batch inference job: parts dealt to them as they get free, those of a host that dies dealt again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.failures import task_reason
from tpuctl.entrypoints.infer_host import PARTS_AHEAD, HostFacts
from tpuctl.errors import CapacityError, JobFailedError
from tpuctl.infer.dealer import Dealer
from tpuctl.infer.parts import Part
from tpuctl.infer.replica import Done

POLL_SECONDS = 0.5
ASK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOptions:
    """``start`` makes the actor of a host; ``max_failures`` hosts may die; ``start_seconds`` is what one may take."""

    start: Callable[[int], Any]
    hosts: int
    max_failures: int
    start_seconds: float


@dataclass(kw_only=True, slots=True)
class _Host:
    """A host's process: its actor, whether it has said that it can work, the parts it has, by their answers.

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
    """Does parts on all hosts. Host numbers count over all slices."""

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._failures = 0
        self._joined: set[int] = set()
        self._hosts = {number: self._start(number) for number in range(options.hosts)}

    def run(self, parts: dict[int, Part], *, stop: Callable[[], bool]) -> Iterator[tuple[int, Done] | None]:
        """Host and outcome of each part as it is done, and None when nothing happened for a moment.

        Ends when all parts are done, or, once ``stop`` says so, when those that hosts have are.

        Raises:
            TpuctlError: a part failed for a reason; hosts died too often; none can be had.
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
        """Whether a host has parts."""
        return any(host.parts for host in self._hosts.values())

    @property
    def underway(self) -> dict[int, int]:
        """Rows that are done of parts that aren't, by host."""
        return {host.number: host.underway for host in self._hosts.values() if host.underway}

    def close(self) -> None:
        """End the hosts' processes."""
        for host in self._hosts.values():
            ray.kill(host.actor)

    def _start(self, number: int) -> _Host:
        actor = self._options.start(number)
        return _Host(number=number, actor=actor, since=time.monotonic(), hello=actor.join.remote())

    def _deal(self, dealer: Dealer, parts: dict[int, Part]) -> None:
        """One part to each host in turn, until all have enough: the last ones shall not all go to the first host."""
        for _ in range(PARTS_AHEAD):
            ready = [host for host in self._hosts.values() if host.ready and len(host.parts) < PARTS_AHEAD]
            for host in sorted(ready, key=lambda host: len(host.parts)):
                index = dealer.deal(host.number)
                if index is not None:
                    host.parts[host.actor.do.remote(parts[index])] = parts[index]

    def _settle(self, dealer: Dealer) -> Iterator[tuple[int, Done] | None]:
        self._ask()
        waiting = {ref: host for host in self._hosts.values() for ref in self._answers(host)}
        answered, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
        if not answered:
            self._check_starts()
            yield None
        for ref in answered:
            host = waiting[ref]
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                raise task_reason(error) from error
            except ray.exceptions.RayError as error:
                self._replace(host, dealer, error)
                continue
            if ref == host.hello:
                self._join(host, answer)
            elif ref == host.question:
                host.underway, host.question = answer, None
            else:
                host.underway = max(0, host.underway - host.parts.pop(ref).rows)
                yield host.number, answer

    def _ask(self) -> None:
        """Ask those at work how far they are, now and then."""
        now = time.monotonic()
        for host in self._hosts.values():
            if host.parts and host.question is None and now - host.asked >= ASK_SECONDS:
                host.question, host.asked = host.actor.underway.remote(), now

    @staticmethod
    def _answers(host: _Host) -> list[Any]:
        if not host.ready:
            return [host.hello]
        return list(host.parts) if host.question is None else [*host.parts, host.question]

    def _join(self, host: _Host, facts: HostFacts) -> None:
        host.ready = True
        if host.number not in self._joined:
            self._joined.add(host.number)
            emit(
                "host",
                host=host.number,
                hosts=self._options.hosts,
                pid=facts.pid,
                ip=facts.ip,
                devices=facts.devices,
                platform=facts.platform,
                simulated=facts.platform == "cpu",
            )

    def _replace(self, host: _Host, dealer: Dealer, error: Exception) -> None:
        """A host's process is gone: its parts are free again, and another takes its place."""
        self._failures += 1
        what = f"host {host.number}: its process died"
        if self._failures > self._options.max_failures:
            raise JobFailedError(f"{what}, for the {self._failures}. time in this job: {_first_line(error)}")
        for part in host.parts.values():
            dealer.give_back(part.index)
        emit("note", text=f"{what} with {len(host.parts)} parts; restart {self._failures}, they are done again")
        self._hosts[host.number] = self._start(host.number)

    def _check_starts(self) -> None:
        """Nobody at work and somebody overdue: nothing more would happen."""
        hosts = self._hosts.values()
        overdue = [h.number for h in hosts if not h.ready and time.monotonic() - h.since > self._options.start_seconds]
        if overdue and not any(host.ready for host in hosts):
            raise CapacityError(
                f"hosts {overdue} did not start within {self._options.start_seconds:.0f} s",
                hint="has the slice been taken away? the same recipe again goes on from the parts that are done",
            )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no words"
