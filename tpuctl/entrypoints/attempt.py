"""One attempt at a run, as the run directory knows it: its lease held, its beginning and end on record."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tpuctl.entrypoints.emit import emit
from tpuctl.errors import TpuctlError
from tpuctl.plan.schema import Plan
from tpuctl.runs.lease import TTL_SECONDS, Lease, LeaseLostError, acquire
from tpuctl.runs.record import Attempt, AttemptStatus, begin_attempt, end_attempt
from tpuctl.storage.access import require_writable


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who this job is. ``takeover`` is the token of a lease whose holder the submitter knows to be gone."""

    submission_id: str
    attempt: int
    cluster: str
    takeover: str | None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """The identity that the submission put into the job's environment."""
        return cls(
            submission_id=environ["TPUCTL_SUBMISSION_ID"],
            attempt=int(environ["TPUCTL_ATTEMPT"]),
            cluster=environ.get("TPUCTL_CLUSTER", ""),
            takeover=environ.get("TPUCTL_TAKEOVER") or None,
        )


class HeldRun:
    """Holds a run directory for the length of a ``with`` block and writes down how it ended.

    The lease is renewed from a thread. If it is lost, another job writes there: this process ends at once, since
    every further byte would be a mistake.
    """

    def __init__(self, plan: Plan, identity: Identity, *, version: str) -> None:
        self._plan = plan
        self._identity = identity
        self._version = version
        self._status: AttemptStatus = "failed"
        self._over = threading.Event()

    def __enter__(self) -> Self:
        directory = self._plan.run.directory
        # Before the lease, which is the first thing written there, and long before a slice is reserved.
        require_writable(directory)
        self._lease = acquire(directory, job=self._identity.submission_id, takeover=self._identity.takeover)
        begin_attempt(
            self._plan,
            Attempt(
                number=self._identity.attempt,
                submission_id=self._identity.submission_id,
                cluster=self._identity.cluster,
                tpuctl_version=self._version,
                started=time.time(),
            ),
        )
        threading.Thread(target=self._renew, args=(self._lease,), name="lease", daemon=True).start()
        return self

    def ended(self, status: AttemptStatus) -> None:
        """How the attempt ended; without this call it has failed."""
        self._status = status

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        reason = error.message if isinstance(error, TpuctlError) else None if error is None else repr(error)
        end_attempt(self._plan.run.directory, status=self._status, ended=time.time(), reason=reason)
        self._lease.release()

    def _renew(self, lease: Lease) -> None:
        while not self._over.wait(TTL_SECONDS / 4):
            try:
                lease.renew()
            except LeaseLostError as error:
                emit("failed", reason=error.message)
                os._exit(1)
