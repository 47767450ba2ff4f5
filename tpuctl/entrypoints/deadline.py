"""The job's time limit: first a request to save and stop, then, after the grace time, an end in any case."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.stopping import request_stop
from tpuctl.errors import JobFailedError
from tpuctl.plan.schema import JobPlan


class Deadline:
    """Bounds what runs inside the ``with`` block. A job that stopped at its limit has failed, not succeeded."""

    def __init__(self, job: JobPlan, submission_id: str) -> None:
        self._job = job
        self._submission_id = submission_id
        self._passed = False
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Self:
        limit = self._job.timeout_seconds
        if limit is not None:
            self._timers = [
                threading.Timer(limit, self._stop),
                threading.Timer(limit + self._job.stop_grace_seconds, self._kill),
            ]
            for timer in self._timers:
                timer.daemon = True
                timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._passed:
            raise JobFailedError(self._reason()) from error

    def _stop(self) -> None:
        self._passed = True
        request_stop(self._submission_id)

    def _kill(self) -> None:
        emit("failed", reason=self._reason() + "; it did not save and stop within the grace time")
        os._exit(1)

    def _reason(self) -> str:
        return f"timed out: the job ran longer than [job] timeout = {self._job.timeout_seconds:g} s"
