from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.jobs_server import JobsServer, Stream
from tpuctl.connection import AuthError, Connection, ResponseError
from tpuctl.errors import ClusterError, JobNotFoundError
from tpuctl.submit.jobs import JobExistsError, JobRequest, JobStatus, StreamClosedError
from tpuctl.submit.ray_jobs import RayJobs


@pytest.fixture
def server() -> Iterator[JobsServer]:
    with JobsServer(token="secret") as running:
        yield running


@pytest.fixture
def jobs(server: JobsServer) -> RayJobs:
    return RayJobs(Connection(server.url, "secret"))


def request(submission_id: str) -> JobRequest:
    return JobRequest(submission_id=submission_id, entrypoint="true", runtime_env={"env_vars": {}}, metadata={"k": "v"})


def test_info_translates_every_field(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a", status="FAILED", message="no", error_type="X", driver_exit_code=-9, metadata={"k": "v"})
    info = jobs.info("a")
    assert (info.status, info.message, info.error_type, info.driver_exit_code) == (JobStatus.FAILED, "no", "X", -9)
    assert (info.started, info.ended, info.metadata) == (1_700_000_000.0, None, {"k": "v"})


def test_info_of_an_id_with_odd_characters_asks_for_that_id(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a b/c?d#e%")
    assert jobs.info("a b/c?d#e%").submission_id == "a b/c?d#e%"
    with pytest.raises(JobNotFoundError):
        jobs.info("../version")


def test_info_of_a_status_ray_has_not_today_is_refused(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a", status="SUSPENDED")
    with pytest.raises(ClusterError, match="expected a status it knows, got 'SUSPENDED'"):
        jobs.info("a")


def test_info_behind_a_proxy_that_finds_no_server_is_no_missing_job(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a")
    server.fail("status", status=404, body="default backend - 404")
    with pytest.raises(ResponseError):
        jobs.info("a")


def test_submit_of_a_taken_id_leaves_the_first_alone(server: JobsServer, jobs: RayJobs) -> None:
    jobs.submit(request("a"))
    first = server.jobs["a"]
    with pytest.raises(JobExistsError, match="job a already exists"):
        jobs.submit(request("a"))
    assert server.jobs["a"] is first
    assert first.metadata == {"k": "v"}


def test_stop_says_whether_the_job_ran(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a")
    assert jobs.stop("a")
    assert not jobs.stop("a")
    with pytest.raises(JobNotFoundError):
        jobs.stop("b")


def test_tail_log_carries_the_token_and_ends_with_its_stream(server: JobsServer, jobs: RayJobs) -> None:
    server.add_job("a", log=b"one", streams=[Stream(send_bytes=3, then="close")])
    with jobs.tail_log("a") as stream:
        assert stream.receive(timeout_seconds=5) == "one"
        with pytest.raises(StreamClosedError):
            stream.receive(timeout_seconds=5)
    with pytest.raises(AuthError, match="refuses our token"), RayJobs(Connection(server.url, "wrong")).tail_log("a"):
        pass
    with pytest.raises(JobNotFoundError), jobs.tail_log("b"):
        pass


def test_tail_log_sends_no_pings_since_ray_never_answers_them(server: JobsServer) -> None:
    server.add_job("a")
    with Connection(server.url, "secret").open_websocket("/api/jobs/a/logs/tail") as socket:
        assert socket.ping_interval is None
