"""The hosts' processes of a slice that has one model: started by Ray, joined, led over sockets, watched for an end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from tpuctl.engine.engine import Engine
from tpuctl.engine.frames import Channel, Listener
from tpuctl.engine.lockstep import Lockstep, Tell
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import batch_sizes
from tpuctl.entrypoints.failures import task_reason
from tpuctl.entrypoints.reservation import Reservation
from tpuctl.entrypoints.runner_host import Joining, RunnerHost
from tpuctl.entrypoints.seats import Seat, deal_ranks
from tpuctl.errors import CapacityError, HostLostError, JobFailedError, TpuctlError
from tpuctl.modelspec import ModelSpec
from tpuctl.plan.schema import InferencePlan, ServingPlan, plan_to_json

# A host that hangs in a step is as good as gone.
STEP_SECONDS = 60.0
_POLL_SECONDS = 0.5
# A broken connection is seen before Ray says why the process ended.
_REASON_SECONDS = 5.0


class RunnerGang:
    """One life of them: when one ends, all are done for."""

    def __init__(self, plan: ServingPlan | InferencePlan, slices: Reservation, *, options: EngineOptions) -> None:
        """Start one process on each host of the reservation, which is one slice, as the plan's is."""
        self._plan = plan
        self._options = options
        self._seconds = plan.job.start_timeout_seconds
        document, make = plan_to_json(plan), ray.remote(RunnerHost)
        self._actors: list[Any] = [
            make.options(max_restarts=0, **slices.options(number)).remote(document)
            for number in range(plan.slice.total_hosts)
        ]
        self._runs: dict[Any, int] = {}
        self._hosts: Lockstep | None = None
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._reason: TpuctlError | None = None
        self._watching = threading.Thread(target=self._watch, name="gang-watch", daemon=True)

    @property
    def hosts(self) -> Lockstep:
        """All of them together, once they are led."""
        assert self._hosts is not None, "led first"
        return self._hosts

    def lead(self, spec: ModelSpec, *, tell: Tell) -> Engine:
        """Have them join each other, and wait for their weights: the engine whose steps they run.

        Raises:
            CapacityError: They did not join in time.
            ClusterError: They are not the hosts of one slice.
            HostLostError: One of them is gone.
            TpuctlError: One of them failed for a reason of ours.
        """
        hosts = self._join(tell=tell)
        with self.reasons():
            hosts.wait_ready(tell)
        return Engine(hosts, sizes=batch_sizes(spec, self._options), options=self._options)

    @contextmanager
    def reasons(self) -> Iterator[None]:
        """Raise the reason of ours behind a lost host, which would come again at the next start, where it had one."""
        try:
            yield
        except HostLostError as error:
            ours = self._ours()
            if ours is None:
                raise
            raise ours from error

    def close(self) -> None:
        """Let them end, and see to it that they do."""
        self._closed.set()
        if self._hosts is not None:
            self._hosts.close()
        for actor in self._actors:
            ray.kill(actor)
        if self._watching.is_alive():
            self._watching.join(_REASON_SECONDS)

    def _join(self, *, tell: Tell) -> Lockstep:
        began = time.monotonic()
        found: list[tuple[Seat, int]] = self._get([actor.seat.remote() for actor in self._actors])
        numbers = deal_ranks([seat for seat, _ in found], slices=1, hosts=self._plan.slice.hosts)
        channels = self._channels(numbers, began)
        seats = [found[numbers.index(number)] for number in range(len(found))]
        where = ", ".join(f"{number} on {seat.node}" for number, (seat, _) in enumerate(seats))
        detail = f"slice {seats[0][0].slice_name}: hosts {where}"
        tell("joined", seconds=time.monotonic() - began, detail=detail, pids=[pid for _, pid in seats])
        self._hosts = Lockstep(channels, step_seconds=STEP_SECONDS, start_seconds=self._seconds)
        if self._ended.is_set():
            self._hosts.lose(self._words())
        return self._hosts

    def _channels(self, numbers: list[int], began: float) -> list[Channel]:
        ((address, port),) = self._get([self._actors[numbers.index(0)].meeting_address.remote()])
        word = secrets.token_urlsafe(32)
        listener = Listener(ray.util.get_node_ip_address(), word=word)  # type: ignore[no-untyped-call]
        try:
            for number, actor in zip(numbers, self._actors, strict=True):
                joining = Joining(
                    number=number,
                    coordinator=f"{address}:{port}",
                    leader=listener.address,
                    word=word,
                    timeout_seconds=self._seconds,
                    options=self._options,
                )
                self._runs[actor.run.remote(joining)] = number
            self._watching.start()
            end = began + self._seconds
            return listener.accept(len(numbers), go_on=lambda: not self._ended.is_set() and time.monotonic() < end)
        except TimeoutError as error:
            if self._reason is not None:
                raise self._reason from error
            hint = "[job] start_timeout gives slow hosts longer"
            raise CapacityError(f"{error} within {self._seconds:.0f} s", hint=hint) from error
        finally:
            listener.close()

    def _get(self, refs: list[Any]) -> list[Any]:
        try:
            return list(ray.get(refs, timeout=self._seconds))
        except ray.exceptions.GetTimeoutError as error:
            raise CapacityError(f"the hosts' processes did not start within {self._seconds:.0f} s") from error
        except ray.exceptions.RayTaskError as error:
            raise task_reason(error) from error
        except ray.exceptions.RayError as error:
            raise HostLostError(f"a host's process is gone: {_first_line(error)}") from error

    def _watch(self) -> None:
        """Wait for the first to end, which none does before it is told to."""
        ended: list[Any] = []
        while not ended and not self._closed.is_set():
            ended, _ = ray.wait(list(self._runs), timeout=_POLL_SECONDS)
        if self._closed.is_set():
            return
        self._reason = self._why(ended[0])
        self._ended.set()
        if self._hosts is not None:
            self._hosts.lose(self._words())

    def _why(self, run: Any) -> TpuctlError:
        host = f"host {self._runs[run]}"
        try:
            ray.get(run)
        except ray.exceptions.RayTaskError as error:
            known = isinstance(error.cause, TpuctlError)
            reason = task_reason(error)
            return reason if known else HostLostError(f"{host} failed: {reason.message}")
        except ray.exceptions.RayError as error:
            return HostLostError(f"{host} is gone: {_first_line(error)}")
        return JobFailedError(f"{host} ended without having been told to")

    def _ours(self) -> TpuctlError | None:
        self._ended.wait(_REASON_SECONDS)
        return None if isinstance(self._reason, HostLostError) else self._reason

    def _words(self) -> str:
        assert self._reason is not None, "set before it is told"
        return self._reason.message


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
