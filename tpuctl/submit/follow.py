"""Follow a job's log to its end, whatever the wire does, and learn the outcome from the final status alone.

Three sources, each trusted for one thing: the job's status says when it is over, the whole log over REST says what was
printed, and the websocket says it early. A stream that ends, however it ends, means nothing. docs/design/submission.md
has the reasoning.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from tpuctl.connection import AuthError
from tpuctl.errors import ClusterError, JobNotFoundError
from tpuctl.runs.events import Event
from tpuctl.submit.jobs import JobInfo, Jobs, JobStatus, LogStream, LogUnreadableError, StreamClosedError
from tpuctl.submit.lines import Line, LineReader
from tpuctl.submit.outcome import Outcome, judge
from tpuctl.submit.transcript import StreamView, Transcript, start_of_last_lines, unify_line_ends

# A fetch of the whole log may take this share of the time, however long the log is.
_FETCH_SHARE = 5
_LONGEST_STALL = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """Time, so that tests need not wait for it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often to look and how long to bear with silence, in seconds."""

    poll_seconds: float = 1.0
    status_seconds: float = 5.0
    stall_seconds: float = 15.0
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 10.0
    unreachable_seconds: float = 300.0
    refused_seconds: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowOptions:
    """``tail``: begin with the last so many lines (None: all). ``notice`` gets talk, such as "connection lost".

    ``known``: the job was there a moment ago, so even a first answer that does not come is waited for.
    """

    tail: int | None = None
    secrets: tuple[str, ...] = ()
    notice: Callable[[str], None] = lambda _: None
    known: bool = True
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=Clock)


def follow(
    jobs: Jobs, submission_id: str, *, sink: Callable[[Line], None], options: FollowOptions | None = None
) -> Outcome:
    """Give every line of the job's log to ``sink``, once and in order, until the job has ended.

    Raises:
        JobNotFoundError: no such job.
        ClusterError: the cluster did not answer, or did not let us in, for longer than ``pace`` bears with. The job
            may still run.
    """
    return _Follower(jobs, submission_id, sink, options or FollowOptions()).run()


def read_lines(
    jobs: Jobs, submission_id: str, *, tail: int | None = None, host: int | None = None, secrets: Iterable[str] = ()
) -> Iterator[Line]:
    """The log as it stands, of one host or of all; its last ``tail`` lines or all."""
    log = unify_line_ends(jobs.read_log(submission_id), final=True)
    reader = LineReader(secrets=secrets)
    reader.learn(log)
    start = 0 if tail is None or host is not None else start_of_last_lines(log, tail)
    lines = (reader.read(raw) for raw in _lines_from(log, start))
    if host is None:
        yield from lines
    else:
        yield from deque((line for line in lines if line.host == host), maxlen=tail)


class _Follower:
    def __init__(self, jobs: Jobs, submission_id: str, sink: Callable[[Line], None], options: FollowOptions) -> None:
        self._jobs = jobs
        self._id = submission_id
        self._sink = sink
        self._options = options
        self._pace, self._clock = options.pace, options.clock
        self._reader = LineReader(secrets=options.secrets)
        self._transcript = Transcript()
        self._failed: Event | None = None
        self._seen = False
        self._outage_began: float | None = None
        self._said_pending = False
        self._began = self._next_fetch = self._clock.now()

    def run(self) -> Outcome:
        info = self._info()
        if self._options.tail is not None:
            self._skip_to_tail(self._options.tail)
        pause = self._pace.first_pause_seconds
        while not info.status.terminal:
            before = self._transcript.offset
            self._stream()
            # Where websockets don't get through at all, the log still comes, only later and dearer.
            moved = self._transcript.offset > before or self._look_up()
            pause = self._pace.first_pause_seconds if moved else min(pause * 2, self._pace.longest_pause_seconds)
            info = self._rest(pause)
        self._finish()
        outcome = judge(info, failed=self._failed)
        return replace(outcome, reason=self._reader.mask(outcome.reason)) if outcome.reason else outcome

    def _skip_to_tail(self, tail: int) -> None:
        log = self._fetch()
        if log is not None:
            self._reader.learn(log)
            self._transcript.skip(log[: start_of_last_lines(log, tail)])
            self._emit(self._transcript.catch_up(log))

    def _stream(self) -> None:
        """Show what a stream brings until it ends, or until the job has."""
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(self._jobs.tail_log(self._id))
            except (ClusterError, JobNotFoundError):
                return
            # Why a stream ended is for the status to say, which is asked next.
            with suppress(StreamClosedError):
                self._drain(stream)

    def _rest(self, pause: float) -> JobInfo:
        """Wait before the next stream, but no longer than the job lasts."""
        over = self._clock.now() + pause
        info = self._info()
        while not info.status.terminal and (left := over - self._clock.now()) > 0:
            self._clock.sleep(min(left, self._pace.poll_seconds))
            info = self._info()
        return info

    def _drain(self, stream: LogStream) -> None:
        view = StreamView(self._transcript)
        asked = heard = self._clock.now()
        stall = self._pace.stall_seconds
        while True:
            text = view.line_ends.feed(stream.receive(timeout_seconds=self._pace.poll_seconds))
            now = self._clock.now()
            if text:
                heard, stall = now, self._pace.stall_seconds
                self._emit(view.take(text))
            if not text or now - asked >= self._pace.status_seconds:
                asked = now
                if self._info().status.terminal:
                    return
            silent = now - heard >= stall
            if (view.waiting or silent) and now >= self._next_fetch:
                grew = self._look_up(view)
                if silent and grew:
                    return
                # A job may rightly be quiet for hours: look less and less often.
                heard, stall = now, min(2 * stall, _LONGEST_STALL * self._pace.stall_seconds)

    def _look_up(self, view: StreamView | None = None) -> bool:
        """Show what the whole log has beyond ours, and learn where a stream stands in it. True if there was more."""
        before = self._transcript.offset
        try:
            log = self._fetch()
        except LogUnreadableError:
            # Nothing to compare with: take the stream for what the server promises, a replay from the start.
            if view is not None and view.waiting:
                self._emit(view.assume_from_start())
            return False
        if log is not None:
            self._emit(self._transcript.catch_up(log))
            if view is not None:
                view.place_in(log)
        return self._transcript.offset > before

    def _fetch(self) -> str | None:
        """The whole log, or None if it can't be had just now."""
        began = self._clock.now()
        try:
            return unify_line_ends(self._jobs.read_log(self._id), final=False)
        except LogUnreadableError:
            raise
        except (ClusterError, JobNotFoundError):
            return None
        finally:
            took = self._clock.now() - began
            self._next_fetch = self._clock.now() + max(self._pace.poll_seconds, _FETCH_SHARE * took)

    def _finish(self) -> None:
        """Show what of the whole log no stream has brought, down to a last line without a newline."""
        try:
            log = self._with_patience(lambda: self._jobs.read_log(self._id), at_most=self._pace.refused_seconds)
            self._emit(self._transcript.catch_up(unify_line_ends(log, final=True)))
        except (ClusterError, JobNotFoundError) as error:
            self._options.notice(f"the end of the log can't be fetched: {error}")
        self._emit(self._transcript.finish())

    def _emit(self, raw_lines: Iterable[str]) -> None:
        for raw in raw_lines:
            line = self._reader.read(raw)
            if line.event is not None and line.event["event"] == "failed":
                self._failed = line.event
            self._sink(line)

    def _info(self) -> JobInfo:
        info = self._with_patience(lambda: self._jobs.info(self._id))
        self._seen = True
        waited = self._clock.now() - self._began
        if info.status is JobStatus.PENDING and not self._said_pending and waited >= self._pace.stall_seconds:
            self._said_pending = True
            self._options.notice(f"job {self._id} has not started yet: {info.message}")
        return info

    def _with_patience[T](self, ask: Callable[[], T], *, at_most: float = math.inf) -> T:
        """Ask until there is an answer, or until it has been too long without one."""
        pause = self._pace.first_pause_seconds
        while True:
            try:
                answer = ask()
            except LogUnreadableError:
                raise
            except (ClusterError, JobNotFoundError) as error:
                if not self._seen and (isinstance(error, JobNotFoundError) or not self._options.known):
                    raise
                self._bear_with(error, at_most)
                self._clock.sleep(pause)
                pause = min(pause * 2, self._pace.longest_pause_seconds)
                continue
            if self._outage_began is not None:
                self._options.notice("connected again")
            self._outage_began = None
            return answer

    def _bear_with(self, error: ClusterError | JobNotFoundError, at_most: float) -> None:
        now = self._clock.now()
        if self._outage_began is None:
            self._outage_began = now
            self._options.notice(f"{error.message}; trying again")
        refused = isinstance(error, AuthError | JobNotFoundError)
        limit = self._pace.refused_seconds if refused else self._pace.unreachable_seconds
        if now - self._outage_began >= min(limit, at_most):
            raise _lost(error, self._id) from error


def _lines_from(log: str, start: int) -> Iterator[str]:
    while start < len(log):
        end = log.find("\n", start)
        end = len(log) if end < 0 else end
        yield log[start:end]
        start = end + 1


def _lost(error: ClusterError | JobNotFoundError, submission_id: str) -> ClusterError:
    if isinstance(error, AuthError):
        return AuthError(f"not logged in: {error.message}; job {submission_id} is untouched", hint=error.hint)
    return ClusterError(
        f"lost sight of job {submission_id}, which may still run: {error.message}",
        hint=f"come back with `tpuctl logs {submission_id} -f`",
    )
