"""The lease of a run directory: who may write there. One holder at a time, by compare-and-swap, not by hope.

The holder renews it; one that is not renewed runs out after its time to live. A lease may be taken over before that
only by naming its token, which says "I know that this very holder is gone". Hosts must agree on the time within a
small part of the time to live. Imports no ray: the control side reads leases too.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.errors import RunInUseError, StorageError
from tpuctl.storage import ABSENT, ChangedError, NotFoundError, join, open_storage

LEASE_SCHEMA = "tpuctl.lease/1"
LEASE_FILE = "lease.json"
TTL_SECONDS = 90.0

_TRIES = 5


class LeaseLostError(RunInUseError):
    """Our lease was taken over: another job writes the run directory now, and this one must not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a lease. Times are Unix seconds; ``machine`` and ``born`` tell a process from its namesakes."""

    job: str
    token: str
    host: str
    machine: str
    pid: int
    born: str
    since: float
    expires: float


class Lease:
    """A lease we hold. Renew it well before ``TTL_SECONDS`` are over, and release it at the end."""

    def __init__(
        self, directory: str, *, holder: Holder, generation: str, ttl_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.directory = directory
        self.holder = holder
        self._generation = generation
        self._ttl_seconds = ttl_seconds
        self._clock = clock

    def renew(self) -> None:
        """Hold it for another time to live.

        Raises:
            LeaseLostError: it is no longer ours.
        """
        renewed = replace(self.holder, expires=self._clock() + self._ttl_seconds)
        uri = _uri(self.directory)
        try:
            self._generation = open_storage(uri).write(uri, _encode(renewed), if_generation=self._generation)
        except ChangedError as error:
            raise self._lost() from error
        self.holder = renewed

    def release(self) -> None:
        """Give it up. One that is no longer ours is left alone."""
        uri = _uri(self.directory)
        try:
            open_storage(uri).delete(uri, if_generation=self._generation)
        except ChangedError:
            return

    def _lost(self) -> LeaseLostError:
        now = current_holder(self.directory)
        other = "nobody" if now is None else f"job {now.job} on {now.host}"
        return LeaseLostError(f"run directory {self.directory}: the lease of job {self.holder.job} went to {other}")


def acquire(
    directory: str,
    *,
    job: str,
    ttl_seconds: float = TTL_SECONDS,
    takeover: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Lease:
    """Take the lease of a run directory.

    Args:
        directory: the run directory's URI.
        job: the submission id that will hold it.
        ttl_seconds: how long it lasts without being renewed.
        takeover: the token of a holder that is known to be gone.
        clock: Unix seconds.

    Raises:
        RunInUseError: another job holds it; the message says who and until when.
    """
    uri = _uri(directory)
    storage = open_storage(uri)
    for _ in range(_TRIES):
        now = clock()
        holder, generation = _read(uri)
        if holder is not None and now < holder.expires and holder.token != takeover:
            raise in_use(directory, holder)
        ours = _new_holder(job, now, ttl_seconds)
        try:
            generation = storage.write(uri, _encode(ours), if_generation=generation)
        except ChangedError:
            continue
        return Lease(directory, holder=ours, generation=generation, ttl_seconds=ttl_seconds, clock=clock)
    raise RunInUseError(f"run directory {directory}: others keep taking its lease")


def current_holder(directory: str) -> Holder | None:
    """Who holds the lease, be it run out or not; None if nobody does."""
    return _read(_uri(directory))[0]


def is_gone(holder: Holder) -> bool:
    """Whether the holder is a process of this very machine that no longer exists. False if that can't be known."""
    return holder.machine == _machine() and _birth(holder.pid) != holder.born


def in_use(directory: str, holder: Holder) -> RunInUseError:
    """The error that says who holds a run directory, until when, and what to do."""
    return RunInUseError(
        f"run directory {directory} is in use by job {holder.job} (host {holder.host}, pid {holder.pid}) "
        f"since {_time(holder.since)}; its lease runs until {_time(holder.expires)} unless renewed",
        hint=f"follow it with `tpuctl logs {holder.job} -f`, end it with `tpuctl stop {holder.job}`, "
        "or give this run another directory",
    )


def _uri(directory: str) -> str:
    return join(directory, LEASE_FILE)


def _read(uri: str) -> tuple[Holder | None, str]:
    try:
        blob = open_storage(uri).read(uri)
    except NotFoundError:
        return None, ABSENT
    try:
        document: dict[str, Any] = json.loads(blob.data)
        if document.pop("schema") != LEASE_SCHEMA:
            raise ValueError
        return Holder(**document), blob.generation
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{uri} is no lease this version can read", hint="remove it if no job runs there") from error


def _encode(holder: Holder) -> bytes:
    return (json.dumps({"schema": LEASE_SCHEMA, **asdict(holder)}, indent=2) + "\n").encode()


def _new_holder(job: str, now: float, ttl_seconds: float) -> Holder:
    return Holder(
        job=job,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        born=_birth(os.getpid()),
        since=now,
        expires=now + ttl_seconds,
    )


def _machine() -> str:
    """This boot of this machine, as seen from this container; empty where the kernel doesn't say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"unknown/{uuid.getnode()}"


def _birth(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name in parentheses may hold anything; the 20th field after it is the start time. A zombie has ended.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
