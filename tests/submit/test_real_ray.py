"""What the fake server claims of Ray, held against Ray itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.shapes import ONE_HOST
from tpuctl.cluster.registry import Cluster
from tpuctl.cluster.shape import SimulatedShape
from tpuctl.errors import ExitCode, JobNotFoundError
from tpuctl.submit.follow import follow, read_lines
from tpuctl.submit.jobs import JobExistsError, JobRequest, JobStatus
from tpuctl.submit.lines import Line
from tpuctl.submit.package import build_package, upload
from tpuctl.submit.ray_jobs import RayJobs

pytestmark = pytest.mark.ray

LONG = 5_000_000  # over the 4 MiB at which Ray's own websocket hop breaks


@pytest.fixture(scope="module")
def jobs(simulated_cluster: Callable[[SimulatedShape], Cluster]) -> RayJobs:
    return RayJobs(simulated_cluster(ONE_HOST).connect())


def start(jobs: RayJobs, submission_id: str, code: str, **environment: str) -> JobRequest:
    package = build_package({"main.py": code.encode()})
    upload(jobs, package)
    env: dict[str, Any] = {"working_dir": package.uri, "env_vars": environment}
    request = JobRequest(submission_id=submission_id, entrypoint="python main.py", runtime_env=env, metadata={"a": "b"})
    jobs.submit(request)
    return request


def test_follow_on_real_ray_survives_what_breaks_its_own_stream(jobs: RayJobs) -> None:
    code = f"""
import sys, time
out = sys.stdout.buffer
out.write("größe\\r\\n10%\\r50%\\rdone\\n".encode() + b"\\xff bad\\n"); out.flush()
time.sleep(2)
out.write(b"x" * {LONG} + b"\\nsame\\nsame\\nlast"); out.flush()
"""
    request = start(jobs, "odd-log", code)
    with pytest.raises(JobExistsError):
        jobs.submit(request)
    lines: list[Line] = []
    outcome = follow(jobs, "odd-log", sink=lines.append)
    texts = [line.text for line in lines]
    begin = texts.index("größe")
    assert texts[begin:] == [
        "größe",
        "10%",
        "50%",
        "done",
        "\N{REPLACEMENT CHARACTER} bad",
        "x" * LONG,
        "same",
        "same",
        "last",
    ]
    assert (outcome.exit_code, outcome.info.metadata["a"]) == (ExitCode.DONE, "b")
    assert [line.text for line in read_lines(jobs, "odd-log", tail=2)] == ["same", "last"]


def test_stop_on_real_ray_gives_the_job_its_own_grace(jobs: RayJobs) -> None:
    code = """
import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(5)  # longer than Ray's usual 3 s
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(300)
"""
    start(jobs, "graceful", code, RAY_JOB_STOP_WAIT_TIME_S="30")
    lines: list[str] = []

    def take(line: Line) -> None:
        lines.append(line.text)
        if line.text == "ready":
            assert jobs.stop("graceful")

    outcome = follow(jobs, "graceful", sink=take)
    assert lines[-3:] == ["ready", "saving", "saved"]
    assert (outcome.info.status, outcome.exit_code) == (JobStatus.STOPPED, ExitCode.JOB_FAILED)
    assert not jobs.stop("graceful")


def test_killed_driver_on_real_ray_has_its_reason(jobs: RayJobs) -> None:
    start(jobs, "killed", "import os\nos.kill(os.getpid(), 9)\n")
    outcome = follow(jobs, "killed", sink=lambda _: None)
    assert outcome.exit_code == ExitCode.JOB_FAILED
    assert "killed by SIGKILL (exit code -9)" in (outcome.reason or "")
    assert "killed" in [info.submission_id for info in jobs.list()]
    with pytest.raises(JobNotFoundError):
        jobs.info("never-was")
