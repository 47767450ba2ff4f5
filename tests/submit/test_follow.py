"""The follow loop against a real server over loopback that does each wrong thing in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.fakes.jobs_server import JobsServer, Stream
from tpuctl.connection import AuthError, Connection
from tpuctl.errors import ClusterError, ExitCode, JobNotFoundError
from tpuctl.runs.events import event, format_line
from tpuctl.submit.follow import Clock, FollowOptions, Pace, follow, read_lines
from tpuctl.submit.lines import Line
from tpuctl.submit.outcome import Outcome
from tpuctl.submit.ray_jobs import RayJobs

QUICK = Pace(
    poll_seconds=0.01,
    status_seconds=0.05,
    stall_seconds=0.1,
    first_pause_seconds=0.005,
    longest_pause_seconds=0.05,
    unreachable_seconds=20.0,
    refused_seconds=20.0,
)


@pytest.fixture
def server() -> Iterator[JobsServer]:
    with JobsServer() as running:
        yield running


class Following:
    """A follow in a thread, with the lines it has shown so far."""

    def __init__(self, server: JobsServer, submission_id: str = "job", *, options: FollowOptions | None = None) -> None:
        self.lines: list[Line] = []
        self.notices: list[str] = []
        self._grown = threading.Condition()
        options = options or FollowOptions(pace=QUICK)
        options = replace(options, notice=self.notices.append)
        self._pool = ThreadPoolExecutor(1)
        jobs = RayJobs(Connection(server.url, timeout_seconds=2.0))
        self._future: Future[Outcome] = self._pool.submit(follow, jobs, submission_id, sink=self._take, options=options)

    @property
    def text(self) -> list[str]:
        return [line.text for line in self.lines]

    def wait_for(self, condition: Callable[[list[str]], bool]) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: condition(self.text), 10), self.text

    def end(self) -> Outcome:
        try:
            return self._future.result(timeout=15)
        finally:
            self._pool.shutdown(wait=False)

    def _take(self, line: Line) -> None:
        with self._grown:
            self.lines.append(line)
            self._grown.notify_all()


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(first, last))


def as_text(log: bytes) -> list[str]:
    return log.decode("utf-8", errors="replace").splitlines()


def test_follow_of_an_honest_server_shows_lines_as_they_come(server: JobsServer) -> None:
    job = server.add_job("job", log=b"first\n")
    following = Following(server)
    following.wait_for(lambda text: text == ["first"])
    job.print(b"second\n")
    following.wait_for(lambda text: text == ["first", "second"])
    job.end("SUCCEEDED")
    outcome = following.end()
    assert (outcome.exit_code, outcome.reason) == (ExitCode.DONE, None)
    assert following.text == ["first", "second"]


@pytest.mark.parametrize("then", ["drop", "close"])
@pytest.mark.parametrize("sent", [0, 7, 11, 21])
def test_follow_when_the_stream_ends_early_goes_on_from_the_same_place(
    server: JobsServer, then: str, sent: int
) -> None:
    job = server.add_job("job", log=numbered(0, 3), streams=[Stream(send_bytes=sent, then=then)])
    following = Following(server)
    job.wait_for_stream(2)
    job.print(numbered(3, 6))
    following.wait_for(lambda text: len(text) == 6)
    assert not job.terminal
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE
    assert following.text == as_text(numbered(0, 6))


def test_follow_when_the_socket_closes_cleanly_mid_run_ends_with_the_later_failure(server: JobsServer) -> None:
    server.add_job(
        "job",
        log=numbered(0, 3),
        status="FAILED",
        driver_exit_code=1,
        statuses=["RUNNING"] * 4,
        streams=[Stream(send_bytes=14, then="close")],
    )
    following = Following(server)
    assert following.end().exit_code == ExitCode.JOB_FAILED
    assert following.text == as_text(numbered(0, 3))


@pytest.mark.parametrize("line", [b"line %d\n", b"same\n"], ids=["distinct", "repeating"])
def test_follow_after_short_replays_neither_loses_nor_doubles(server: JobsServer, line: bytes) -> None:
    def lines(first: int, last: int) -> bytes:
        return b"".join(line % n if b"%" in line else line for n in range(first, last))

    short = Stream(last_lines=5, send_bytes=20, then="drop")
    job = server.add_job("job", log=lines(0, 40), streams=[Stream(send_bytes=90, then="drop"), short, short])
    following = Following(server)
    job.wait_for_stream(3)
    job.streams.append(Stream(from_now=True))
    job.print(lines(40, 60))
    following.wait_for(lambda text: len(text) == 60)
    job.print(lines(60, 70))
    following.wait_for(lambda text: len(text) == 70)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == as_text(lines(0, 70))


def test_follow_of_a_stream_that_falls_silent_after_the_end_ends_with_the_status(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 9), streams=[Stream(send_bytes=14, then="stall")])
    following = Following(server)
    job.wait_for_stream()
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE
    assert following.text == as_text(numbered(0, 9))


def test_follow_of_a_stream_that_falls_silent_mid_run_finds_the_missed_lines(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 2), streams=[Stream(send_bytes=14, then="stall")])
    following = Following(server)
    job.wait_for_stream()
    job.print(numbered(2, 5))
    following.wait_for(lambda text: len(text) == 5)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == as_text(numbered(0, 5))


def test_follow_last_line_without_a_newline_is_shown(server: JobsServer) -> None:
    job = server.add_job("job", log=b"a\n")
    following = Following(server)
    following.wait_for(lambda text: text == ["a"])
    job.print(b"b")
    job.end("SUCCEEDED")
    following.end()
    assert following.text == ["a", "b"]


@pytest.mark.parametrize("message_bytes", [1, 3, 1000])
def test_follow_of_bytes_that_are_no_text_and_cut_characters_is_whole(server: JobsServer, message_bytes: int) -> None:
    log = "größe → 好\n".encode() + b"\xff\xfe bad \xe2\x82 cut\nend\n"
    job = server.add_job("job", streams=[Stream(message_bytes=message_bytes), Stream(message_bytes=message_bytes)])
    following = Following(server)
    job.wait_for_stream()
    job.print(log)
    following.wait_for(lambda text: len(text) == 3)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == as_text(log)


@pytest.mark.parametrize("message_bytes", [1, 4, 1000])
def test_follow_of_carriage_returns_gives_each_state_a_line_of_its_own(server: JobsServer, message_bytes: int) -> None:
    stream = Stream(message_bytes=message_bytes, send_bytes=9, then="drop")
    job = server.add_job("job", log=b"dos\r\n10%\r50%\r99%\rdone\r\nlast", streams=[stream])
    following = Following(server)
    following.wait_for(lambda text: len(text) == 5)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == ["dos", "10%", "50%", "99%", "done", "last"]


def test_follow_of_a_line_of_12_megabytes_is_whole(server: JobsServer) -> None:
    line = b"x" * 12_000_000
    job = server.add_job(
        "job", log=b"before\n" + line + b"\nafter\n", streams=[Stream(send_bytes=5_000_000, then="drop")]
    )
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    job.end("SUCCEEDED")
    following.end()
    assert [len(text) for text in following.text] == [6, 12_000_000, 5]


def test_follow_of_a_restarting_head_waits_and_goes_on(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 3))
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    server.stop()
    job.print(numbered(3, 5))
    while not following.notices:
        time.sleep(0.001)
    server.start()
    following.wait_for(lambda text: len(text) == 5)
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE
    assert following.text == as_text(numbered(0, 5))
    assert any("connect" in notice for notice in following.notices)


def test_follow_of_a_head_that_stays_away_gives_up_and_says_the_job_may_run(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 3))
    following = Following(server, options=FollowOptions(pace=replace(QUICK, unreachable_seconds=0.2)))
    following.wait_for(lambda text: len(text) == 3)
    server.stop()
    with pytest.raises(ClusterError, match="may still run") as caught:
        following.end()
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert "tpuctl logs job -f" in (caught.value.hint or "")
    assert job.status == "RUNNING"


def test_follow_with_a_login_that_comes_back_goes_on(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 3))
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    server.fail("status", status=401, body="Unauthorized", times=3)
    job.print(numbered(3, 4))
    following.wait_for(lambda text: len(text) == 4)
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE


def test_follow_with_a_login_gone_for_good_says_so_and_leaves_the_job_alone(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 3))
    server.fail("any", status=401, body="Unauthorized", times=10**9)
    with pytest.raises(AuthError, match=r"not logged in.*untouched") as caught:
        Following(server, options=FollowOptions(pace=replace(QUICK, refused_seconds=0.1))).end()
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert job.status == "RUNNING"
    assert not [path for method, path in server.requests if method == "POST"]


@pytest.mark.parametrize("body", ["Internal Server Error", "404: Not Found"])
def test_follow_through_server_errors_on_every_path_loses_nothing(server: JobsServer, body: str) -> None:
    job = server.add_job("job", log=numbered(0, 3), streams=[Stream(send_bytes=10, then="drop")])
    for what in ("status", "logs", "tail", "status", "logs", "tail"):
        server.fail(what, status=404 if "404" in body else 502, body=body, times=2)
    server.fail("status", hang_up=True)
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    job.print(numbered(3, 5))
    job.end("FAILED", driver_exit_code=1)
    assert following.end().exit_code == ExitCode.JOB_FAILED
    assert following.text == as_text(numbered(0, 5))


def test_follow_where_no_websocket_passes_still_shows_the_log_while_it_runs(server: JobsServer) -> None:
    server.fail("tail", status=403, body="no upgrades here", times=10**9)
    job = server.add_job("job", log=numbered(0, 3))
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    job.print(numbered(3, 5))
    following.wait_for(lambda text: len(text) == 5)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == as_text(numbered(0, 5))


def test_follow_when_ray_can_neither_stream_nor_decode_the_log_reads_its_file(server: JobsServer) -> None:
    server.fail("logs", status=500, body="Traceback\nUnicodeDecodeError: 'utf-8' codec", times=10**9)
    log = b"a\n\xff\xfe bad\nend\n"
    job = server.add_job("job", log=log, streams=[Stream(send_bytes=0, then="drop")] * 20)
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE
    assert following.text == as_text(log)


def test_follow_when_the_log_cannot_be_read_back_takes_the_stream_alone(server: JobsServer) -> None:
    server.fail("raw_log", status=404, times=10**9)
    server.fail("logs", status=500, body="Traceback\nUnicodeDecodeError: 'utf-8' codec", times=10**9)
    job = server.add_job("job", log=numbered(0, 3), streams=[Stream(send_bytes=16, then="drop")])
    following = Following(server)
    following.wait_for(lambda text: len(text) == 3)
    job.end("SUCCEEDED")
    assert following.end().exit_code == ExitCode.DONE
    assert following.text == as_text(numbered(0, 3))
    assert any("end of the log" in notice for notice in following.notices)


def test_follow_of_an_unknown_job_is_said_at_once(server: JobsServer) -> None:
    with pytest.raises(JobNotFoundError, match="no job job"):
        Following(server).end()


def test_follow_of_a_job_the_cluster_forgot_does_not_call_it_done(server: JobsServer) -> None:
    server.add_job("job", log=numbered(0, 3))
    following = Following(server, options=FollowOptions(pace=replace(QUICK, refused_seconds=0.1)))
    following.wait_for(lambda text: len(text) == 3)
    server.jobs.clear()
    with pytest.raises(ClusterError, match="lost sight of job job"):
        following.end()


def test_follow_from_a_tail_begins_there_and_goes_on(server: JobsServer) -> None:
    job = server.add_job("job", log=numbered(0, 1000))
    following = Following(server, options=FollowOptions(pace=QUICK, tail=2))
    following.wait_for(lambda text: len(text) == 2)
    job.print(numbered(1000, 1002))
    following.wait_for(lambda text: len(text) == 4)
    job.end("SUCCEEDED")
    following.end()
    assert following.text == as_text(numbered(998, 1002))


def test_follow_of_300_000_lines_in_small_messages_is_exact(server: JobsServer) -> None:
    log = numbered(0, 300_000)
    server.add_job("job", log=log, status="SUCCEEDED", statuses=["RUNNING"], streams=[Stream(message_bytes=20_000)])
    following = Following(server)
    following.end()
    assert following.text == as_text(log)


def test_follow_reason_is_taken_from_the_failed_event(server: JobsServer) -> None:
    line = format_line(event("failed", reason="timeout: 5 s are over", step=3)).encode()
    server.add_job("job", log=line + b"\nnoise\n", status="FAILED", driver_exit_code=1)
    outcome = Following(server).end()
    assert (outcome.exit_code, outcome.reason) == (ExitCode.JOB_FAILED, "timeout: 5 s are over")


def test_follow_masks_secrets_in_lines_and_events(server: JobsServer) -> None:
    log = b"token hf_test123 'a\"b'\n" + format_line(event("note", text='a"b')).encode() + b"\n"
    server.add_job("job", log=log, status="SUCCEEDED")
    following = Following(server, options=FollowOptions(pace=QUICK, secrets=("hf_test123", 'a"b')))
    following.end()
    assert following.text[0] == "token *** '***'"
    assert following.lines[1].event is not None
    assert following.lines[1].event["text"] == "***"


def test_follow_gives_up_by_the_clock_it_is_given_without_waiting(server: JobsServer) -> None:
    now = [0.0]
    clock = Clock(now=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    server.stop()
    jobs = RayJobs(Connection(server.url))
    began = time.monotonic()
    with pytest.raises(ClusterError, match="may still run"):
        follow(jobs, "job", sink=lambda _: None, options=FollowOptions(clock=clock))
    assert now[0] >= Pace().unreachable_seconds
    assert time.monotonic() - began < 5


def test_read_lines_with_a_tail_gives_the_last_ones(server: JobsServer) -> None:
    server.add_job("job", log=numbered(0, 300_000) + b"no newline")
    lines = [line.text for line in read_lines(RayJobs(Connection(server.url)), "job", tail=3)]
    assert lines == ["line 299998", "line 299999", "no newline"]


def test_follow_of_a_job_that_is_slow_to_start_says_what_it_waits_for(server: JobsServer) -> None:
    job = server.add_job("job", status="PENDING", message="It may be waiting for the runtime environment to be set up.")
    following = Following(server)
    while not following.notices:
        time.sleep(0.001)
    job.end("SUCCEEDED")
    following.end()
    assert len([notice for notice in following.notices if "runtime environment to be set up" in notice]) == 1
