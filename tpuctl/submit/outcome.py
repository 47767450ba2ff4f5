"""How a job ended: the exit code from the final status alone, and the reason in words a user can act on."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tpuctl.errors import ExitCode
from tpuctl.runs.events import Event, parse_line
from tpuctl.submit.jobs import JobInfo, JobStatus

# Our own entrypoints end with these, and they mean the same here as there.
_MEANT_CODES = (ExitCode.UNAVAILABLE, ExitCode.EXPECTATION_MISSED)
# Python itself leaves with this one too; it is ours where the job gave a reason.
_REASONED_CODE = ExitCode.USAGE
_LOG_IN_MESSAGE = "last available logs"
_PIP_ERROR = "ERROR:"
# Environments made by uv have none.
_NO_PIP = "No module named pip"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A job's end. ``reason`` is None for a success."""

    info: JobInfo
    exit_code: ExitCode
    reason: str | None = None


def judge(info: JobInfo, *, failed: Event | None = None) -> Outcome:
    """The outcome of a job in a terminal state; ``failed`` is the last ``failed`` event of its log, if one was seen."""
    if info.status is JobStatus.SUCCEEDED:
        return Outcome(info=info, exit_code=ExitCode.DONE)
    if info.status is JobStatus.STOPPED:
        return Outcome(info=info, exit_code=ExitCode.JOB_FAILED, reason="stopped on request")
    failed = failed or _failed_event(info.message)
    meant = _MEANT_CODES if failed is None else (*_MEANT_CODES, _REASONED_CODE)
    code = next((code for code in meant if code == info.driver_exit_code), ExitCode.JOB_FAILED)
    return Outcome(info=info, exit_code=code, reason=failure_reason(info, failed=failed))


def failure_reason(info: JobInfo, *, failed: Event | None = None) -> str:
    """Why a job failed, as one line where the cluster says it in one."""
    failed = failed or _failed_event(info.message)
    if failed is not None and failed.get("reason"):
        return str(failed["reason"])
    if info.error_type == "RUNTIME_ENV_SETUP_FAILURE" or info.message.startswith("runtime_env setup failed"):
        return f"its environment could not be set up: {_setup_error(info.message)}"
    if info.driver_exit_code is not None:
        return _exit_reason(info.driver_exit_code, info.message)
    return _first_line(info.message) or "the cluster gives no reason"


def _failed_event(message: str) -> Event | None:
    events = [event for event in map(parse_line, message.splitlines()) if event is not None]
    return next((event for event in reversed(events) if event["event"] == "failed"), None)


def _setup_error(message: str) -> str:
    """Pip's own error lines if there are some; else the last line, where Ray puts the cause."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if _NO_PIP in message:
        return "the cluster's Python has no pip to install [job] pip with; put pip into its environment"
    errors = [line[line.index(_PIP_ERROR) :] for line in lines if _PIP_ERROR in line]
    return "; ".join(dict.fromkeys(errors)) or (lines[-1] if lines else "no text")


def _exit_reason(code: int, message: str) -> str:
    # A shell that did not exec its command reports a signal as 128 + its number.
    number = -code if code < 0 else code - 128
    if code != 0 and number in set(signal.Signals):
        name = signal.Signals(number).name
        more = "; out of memory on the head node?" if name == "SIGKILL" else ""
        return f"its driver was killed by {name} (exit code {-number}){more}"
    _, found, log = message.partition(_LOG_IN_MESSAGE)
    lines = [line.strip() for line in log.splitlines()[1:] if line.strip()] if found else []
    return f"its driver ended with exit code {code}" + (f": {lines[-1]}" if lines else "")


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")
