"""Watching a job from a terminal: its lines go to a view, its end becomes an exit code, Ctrl-C lets go of it.

``train`` and ``logs -f`` share this, so leaving and coming back are the same everywhere.
"""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from tpuctl.cli import console
from tpuctl.cli.progress import View, Wording
from tpuctl.errors import ExitCode
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.submit.follow import FollowOptions
    from tpuctl.submit.jobs import Jobs
    from tpuctl.submit.lines import Line
    from tpuctl.submit.outcome import Outcome


class LineView(Protocol):
    """Where the lines of a watched job go."""

    def show(self, line: Line) -> None:
        """The next line."""

    def close(self) -> None:
        """The job is over, or we leave it."""


class ProgressView:
    """Events to the phase line, other lines past it. ``last`` is the latest event of each name."""

    def __init__(self, view: View) -> None:
        self.last: dict[str, Event] = {}
        self._view = view

    def show(self, line: Line) -> None:
        """The next line."""
        if line.event is not None:
            self.last[line.event["event"]] = line.event
            self._view.event(line.event)
        else:
            self._view.line(with_host(line))

    def close(self) -> None:
        """Take the phase line away."""
        self._view.close()


class LogView:
    """Every line to stdout, events in words; or every line as a JSON object. ``host`` lets only its lines pass."""

    def __init__(self, *, json: bool = False, host: int | None = None) -> None:
        self._json = json
        self._host = host
        self._words = Wording()

    def show(self, line: Line) -> None:
        """The next line."""
        if self._host is not None and line.host != self._host:
            return
        if self._json:
            document = {"schema": "tpuctl.line/1", "host": line.host, "text": line.text, "event": line.event}
            console.print_json(document, indent=None)
            return
        words = line.text if line.event is None else self._words.of(line.event)
        if words is not None:
            console.out(with_host(line, words))

    def close(self) -> None:
        """Nothing is pending."""


def with_host(line: Line, text: str | None = None) -> str:
    """A line's text with the host that printed it, if that is known."""
    text = line.text if text is None else text
    return text if line.host is None else f"[host {line.host}] {text}"


def watch(
    jobs: Jobs, submission_id: str, *, view: LineView, options: FollowOptions, cluster: str | None = None
) -> ExitCode:
    """Show a job's lines until it ends, or until Ctrl-C; the exit code to leave with.

    Raises:
        JobNotFoundError: no such job.
        ClusterError: the cluster is out of reach for too long; the job may still run.
    """
    from tpuctl.submit.follow import follow

    options = replace(options, notice=console.say)
    with _one_interrupt():
        try:
            with closing(view):
                outcome = follow(jobs, submission_id, sink=view.show, options=options)
        except KeyboardInterrupt:
            say_way_back(submission_id, cluster=cluster)
            return ExitCode.DETACHED
    say_outcome(outcome)
    return outcome.exit_code


def say_way_back(submission_id: str, *, cluster: str | None) -> None:
    """The line that a user who lets go of a job needs; ``cluster`` is what ``--cluster`` said."""
    where = "" if cluster is None else f" --cluster {shlex.quote(cluster)}"
    console.say(
        f"job {submission_id} is still running; re-attach: tpuctl logs {submission_id} -f{where}; "
        f"stop: tpuctl stop {submission_id}{where}"
    )


def say_outcome(outcome: Outcome) -> None:
    """How a job ended, if not well."""
    if outcome.reason is not None:
        status = outcome.info.status.lower()
        reason = "" if status == "stopped" else f": {outcome.reason}"
        console.say(f"job {outcome.info.submission_id} {status}{reason}")


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C through and no other, so that nothing cuts off the word that is said on leaving."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def once(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        # After an interrupt the process only has its goodbye left, so it stays deaf.
        if signal.getsignal(signal.SIGINT) is once:
            signal.signal(signal.SIGINT, before)
