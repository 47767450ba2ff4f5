"""The narrow seam to whatever runs jobs: a protocol of eight verbs and the few facts that come back.

``ray_jobs`` is the one real implementation; tests bring fakes. Nothing here knows HTTP or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tpuctl.errors import ClusterError


class JobStatus(StrEnum):
    """Where a job stands. Ray's own five words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        """Whether the job can't change any more."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInfo:
    """What the cluster says of a job. Times are Unix seconds."""

    submission_id: str
    status: JobStatus
    message: str = ""
    error_type: str | None = None
    entrypoint: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None
    driver_exit_code: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """A job to be started. ``entrypoint`` is read by a shell, so no value of a user may stand in it."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any]
    metadata: Mapping[str, str]


class JobExistsError(ClusterError):
    """The submission id is taken; the job that has it was left alone."""


class NotReadyError(ClusterError):
    """The cluster answers but can't take jobs (yet)."""


class LogUnreadableError(ClusterError):
    """The cluster can't read a job's log back."""


class StreamClosedError(Exception):
    """The log stream ended. This says nothing about the job."""


class LogStream(Protocol):
    """A job's log as it grows. Where in the log it begins is the server's whim; see ``follow``."""

    def receive(self, *, timeout_seconds: float) -> str:
        """The next piece of text, or "" if none came in time; raises ``StreamClosedError`` at the end."""


class Jobs(Protocol):
    """A place that runs jobs. Every method may raise ``ClusterError``."""

    @property
    def address(self) -> str:
        """Where it is, for messages."""

    def submit(self, request: JobRequest) -> None:
        """Start a job; raises ``JobExistsError`` for an id that is taken."""

    def info(self, submission_id: str) -> JobInfo:
        """How a job stands; raises ``JobNotFoundError``."""

    def list(self) -> list[JobInfo]:
        """All submitted jobs the cluster remembers, newest first."""

    def stop(self, submission_id: str) -> bool:
        """Ask a job to end (SIGTERM, and SIGKILL after its grace); False if it wasn't running."""

    def read_log(self, submission_id: str) -> str:
        """The whole log as it stands; raises ``LogUnreadableError``."""

    def tail_log(self, submission_id: str) -> AbstractContextManager[LogStream]:
        """Open a stream of the log."""

    def has_package(self, uri: str) -> bool:
        """Whether the cluster holds the package already. Asking keeps it alive for some minutes."""

    def upload_package(self, uri: str, content: bytes) -> None:
        """Send a package."""
