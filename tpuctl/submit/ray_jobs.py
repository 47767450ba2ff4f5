"""Ray's Jobs API over plain HTTP: each answer is translated into ours or refused, none passed through.

Written against the server of Ray 2.60 (``ray/dashboard/modules/job/job_head.py``). Imports no ray: its client costs
two seconds of CPU, more than a whole submission takes here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.connection import Connection, ResponseError
from tpuctl.errors import ClusterError, JobNotFoundError, UsageError
from tpuctl.submit.jobs import (
    JobExistsError,
    JobInfo,
    JobRequest,
    JobStatus,
    LogUnreadableError,
    NotReadyError,
    StreamClosedError,
)

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

# The server itself waits 10 s for its agent before it answers a submission.
_SUBMIT_TIMEOUT_SECONDS = 60.0
_TRANSFER_TIMEOUT_SECONDS = 120.0
_NOT_READY = ("No available agent", "Failed to get head node agent", "Agent info not found")


class RayJobs:
    """The jobs of one Ray cluster."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def address(self) -> str:
        """The dashboard's URL."""
        return self._connection.address

    def submit(self, request: JobRequest) -> None:
        """Start a job; raises ``JobExistsError`` for a taken id, ``NotReadyError`` while no agent takes jobs."""
        document = {
            "submission_id": request.submission_id,
            "entrypoint": request.entrypoint,
            "runtime_env": dict(request.runtime_env),
            "metadata": dict(request.metadata),
        }
        try:
            self._connection.post("/api/jobs/", json=document, timeout=_SUBMIT_TIMEOUT_SECONDS)
        except ResponseError as error:
            raise _translate_submit(error, request.submission_id) from error

    def info(self, submission_id: str) -> JobInfo:
        """How a job stands."""
        with _job_may_be_missing(submission_id):
            return _job_info(self._connection.get_json(_path(submission_id)))

    def list(self) -> list[JobInfo]:
        """All submitted jobs, newest first; drivers that joined by themselves are none of ours."""
        answer = self._connection.get_json("/api/jobs/")
        if not isinstance(answer, list):
            raise _strange("a list of jobs", answer)
        infos = [_job_info(item) for item in answer if item.get("submission_id")]
        return sorted(infos, key=lambda info: info.started or 0.0, reverse=True)

    def stop(self, submission_id: str) -> bool:
        """Ask a job to end."""
        with _job_may_be_missing(submission_id):
            answer = self._connection.post(f"{_path(submission_id)}/stop", timeout=_SUBMIT_TIMEOUT_SECONDS).json()
        return bool(answer.get("stopped"))

    def read_log(self, submission_id: str) -> str:
        """The whole log. Ray's server can't decode a log with a byte that is no UTF-8; its raw file serves then."""
        path = f"{_path(submission_id)}/logs"
        try:
            with _job_may_be_missing(submission_id):
                answer = self._connection.get_json(path, timeout=_TRANSFER_TIMEOUT_SECONDS)
        except ResponseError as error:
            if "UnicodeDecodeError" not in error.body:
                raise
            return self._read_log_file(submission_id)
        if not isinstance(answer, dict):
            raise _strange("a log", answer)
        return _without_surrogates(str(answer.get("logs") or ""))

    @contextmanager
    def tail_log(self, submission_id: str) -> Iterator[_WebsocketStream]:
        """Open the websocket that streams the log."""
        with _job_may_be_missing(submission_id):
            socket = self._connection.open_websocket(f"{_path(submission_id)}/logs/tail")
        with socket:
            yield _WebsocketStream(socket)

    def has_package(self, uri: str) -> bool:
        """Whether the cluster holds the package."""
        try:
            self._connection.get(_package_path(uri))
        except ResponseError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def upload_package(self, uri: str, content: bytes) -> None:
        """Send a package; raises ``UsageError`` if a proxy before the cluster takes less than Ray does."""
        try:
            self._connection.put(_package_path(uri), content=content, timeout=_TRANSFER_TIMEOUT_SECONDS)
        except ResponseError as error:
            if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise
            size = len(content) / 1024**2
            raise UsageError(f"{self.address} takes no package of {size:.1f} MiB (HTTP 413)") from error

    def _read_log_file(self, submission_id: str) -> str:
        node = self._connection.get_json(_path(submission_id)).get("driver_node_id") or ""
        wanted = {"node_id": node, "filename": f"job-driver-{submission_id}.log", "lines": -1}
        try:
            answer = self._connection.get("/api/v0/logs/file", params=wanted, timeout=_TRANSFER_TIMEOUT_SECONDS)
        except ResponseError as error:
            raise LogUnreadableError(f"the cluster can't read the log of {submission_id}: not UTF-8") from error
        return answer.content.decode("utf-8", errors="replace")


class _WebsocketStream:
    """Text out of websocket messages. A character may be cut in two by them; a byte may be no UTF-8 at all."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def receive(self, *, timeout_seconds: float) -> str:
        """The next piece of text, or ""."""
        from websockets.exceptions import ConnectionClosed

        try:
            message = self._socket.recv(timeout=timeout_seconds, decode=False)
        except TimeoutError:
            return ""
        except (ConnectionClosed, OSError, EOFError) as error:
            raise StreamClosedError(str(error)) from error
        return self._decoder.decode(message)


@contextmanager
def _job_may_be_missing(submission_id: str) -> Iterator[None]:
    try:
        yield
    except ResponseError as error:
        # A proxy's 404 while the head restarts looks almost the same; only Ray's own says this.
        if error.status == HTTPStatus.NOT_FOUND and "does not exist" in error.body:
            raise JobNotFoundError(f"no job {submission_id} on this cluster", hint="see `tpuctl jobs ls`") from error
        raise


def _translate_submit(error: ResponseError, submission_id: str) -> ClusterError:
    if "already exists" in error.body:
        return JobExistsError(f"job {submission_id} already exists", hint=f"see `tpuctl jobs show {submission_id}`")
    if any(words in error.body for words in _NOT_READY):
        return NotReadyError("the cluster has no job agent to take the job")
    return error


def _job_info(answer: Any) -> JobInfo:
    if not isinstance(answer, dict) or "status" not in answer:
        raise _strange("a job", answer)
    try:
        status = JobStatus(answer["status"])
    except ValueError:
        raise _strange("a status it knows", answer["status"]) from None
    return JobInfo(
        submission_id=str(answer.get("submission_id") or answer.get("job_id") or ""),
        status=status,
        message=answer.get("message") or "",
        error_type=answer.get("error_type"),
        entrypoint=answer.get("entrypoint") or "",
        metadata=_text_map(answer.get("metadata")),
        started=_seconds(answer.get("start_time")),
        ended=_seconds(answer.get("end_time")),
        driver_exit_code=answer.get("driver_exit_code"),
    )


def _text_map(value: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(key): str(item) for key, item in (value or {}).items()}


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def _strange(expected: str, got: object) -> ClusterError:
    return ClusterError(f"Ray's Jobs API: expected {expected}, got {str(got)[:80]!r}", hint="is its version supported?")


def _path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"


def _package_path(uri: str) -> str:
    protocol, _, name = uri.partition("://")
    return f"/api/packages/{protocol}/{quote(name, safe='')}"


def _without_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
