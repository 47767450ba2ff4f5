"""``jobs``, ``logs`` and ``stop`` as a user meets them, against a server over loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.jobs_server import FakeJob, JobsServer, Stream
from tpuctl.cli.app import run
from tpuctl.errors import ExitCode
from tpuctl.runs.events import event, format_line

ROOT = Path(__file__).parents[2]
PIP_FAILURE = """runtime_env setup failed: Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
Failed to install pip requirements: no-such-package-xyz
ERROR: Could not find a version that satisfies the requirement no-such-package-xyz (from versions: none)
ERROR: No matching distribution found for no-such-package-xyz
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobsServer]:
    with JobsServer() as running:
        monkeypatch.setenv("TPUCTL_CLUSTER", running.url)
        yield running


def start_tpuctl(server: JobsServer, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "TPUCTL_CLUSTER": server.url, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "tpuctl", *arguments]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def two_hosts(server: JobsServer, **fields: object) -> FakeJob:
    def host(number: int) -> str:
        item = event("host", host=number, hosts=2, pid=10 + number, devices=4, platform="cpu", simulated=True)
        return f"(RayTrainWorker pid={10 + number}, ip=10.0.0.1) {format_line(item)}"

    lines = [
        "Running entrypoint for job job: python -m x",
        "(RayTrainWorker pid=11, ip=10.0.0.1) early",
        host(1),
        host(0),
        "(RayTrainWorker pid=10, ip=10.0.0.1) step 1 loss 2.0",
        "(RayTrainWorker pid=11, ip=10.0.0.1) step 1 loss 2.0",
        "(raylet) somebody else",
    ]
    return server.add_job("job", log="".join(f"{line}\n" for line in lines).encode(), **fields)


def test_jobs_ls_lists_newest_first_in_each_form(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.add_job("old", status="FAILED", start_time=1_700_000_000_000, end_time=1_700_000_060_000)
    server.add_job(
        "new", start_time=1_700_000_100_000, metadata={"tpuctl_kind": "train", "tpuctl_slice": "1 x TPU-V6E"}
    )
    assert run(["jobs", "ls", "--quiet"]) == 0
    assert capsys.readouterr().out == "new\nold\n"
    assert run(["jobs", "ls"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:4] for row in rows] == [
        ["ID", "STATUS", "KIND", "SLICE"],
        ["new", "RUNNING", "train", "1 x TPU-V6E"],
        ["old", "FAILED", "-", "-"],
    ]
    assert rows[2][5] == "1 min 00 s"
    assert run(["jobs", "ls", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tpuctl.jobs/1"
    assert [job["id"] for job in document["jobs"]] == ["new", "old"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"driver_exit_code": -9}, "its driver was killed by SIGKILL (exit code -9); out of memory on the head node?"),
        ({"driver_exit_code": 137}, "its driver was killed by SIGKILL (exit code -9); out of memory on the head node?"),
        (
            {"error_type": "RUNTIME_ENV_SETUP_FAILURE", "message": PIP_FAILURE},
            "its environment could not be set up: ERROR: Could not find a version that satisfies the requirement "
            "no-such-package-xyz (from versions: none); ERROR: No matching distribution found for no-such-package-xyz",
        ),
        (
            {"driver_exit_code": 1, "message": "failed with exit code 1, last available logs (…):\na\nKeyError: 'x'\n"},
            "its driver ended with exit code 1: KeyError: 'x'",
        ),
        (
            {
                "driver_exit_code": 1,
                "message": "last available logs\n"
                + format_line(event("failed", reason="timeout: 5 s are over"))
                + "\nx",
            },
            "timeout: 5 s are over",
        ),
        (
            {"error_type": "JOB_SUPERVISOR_ACTOR_DIED", "message": "Job supervisor actor died: node was preempted"},
            "Job supervisor actor died: node was preempted",
        ),
    ],
)
def test_jobs_show_of_a_failed_job_says_why(
    server: JobsServer, capsys: pytest.CaptureFixture[str], fields: dict[str, object], reason: str
) -> None:
    server.add_job("job", status="FAILED", **fields)
    assert run(["jobs", "show", "job"]) == 0
    assert f"reason: {reason}\n" in capsys.readouterr().out
    assert run(["jobs", "show", "job", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == reason


def test_jobs_show_of_an_unknown_job_is_a_usage_error(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "show", "nope"]) == ExitCode.USAGE
    assert "no job nope on this cluster" in capsys.readouterr().err


def test_jobs_without_a_cluster_say_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("TPUCTL_CLUSTER", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    assert run(["jobs", "ls"]) == ExitCode.UNAVAILABLE
    assert "--cluster" in capsys.readouterr().err


def test_logs_show_each_hosts_lines_under_its_number(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    two_hosts(server, status="SUCCEEDED")
    assert run(["logs", "job"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "[host 1] early"
    assert lines[-3:] == ["[host 0] step 1 loss 2.0", "[host 1] step 1 loss 2.0", "(raylet) somebody else"]


def test_logs_of_one_host_and_of_a_tail_are_just_that(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    two_hosts(server, status="SUCCEEDED")
    assert run(["logs", "job", "--host", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "[host 0] step 1 loss 2.0"
    assert run(["logs", "job", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "(raylet) somebody else\n"
    assert run(["logs", "job", "--host", "1", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "[host 1] step 1 loss 2.0\n"
    assert run(["logs", "job", "--tail", "0"]) == 0
    assert capsys.readouterr().out == ""


def test_logs_as_json_are_one_object_a_line(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    two_hosts(server, status="SUCCEEDED")
    assert run(["logs", "job", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["schema"] for line in lines} == {"tpuctl.line/1"}
    assert [line["host"] for line in lines] == [None, 1, 1, 0, 0, 1, None]
    assert lines[2]["event"]["event"] == "host"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": "SUCCEEDED"}, ExitCode.DONE),
        ({"status": "FAILED", "driver_exit_code": 1}, ExitCode.JOB_FAILED),
        ({"status": "FAILED", "driver_exit_code": 4}, ExitCode.EXPECTATION_MISSED),
        ({"status": "FAILED", "driver_exit_code": 3}, ExitCode.UNAVAILABLE),
        ({"status": "STOPPED"}, ExitCode.JOB_FAILED),
    ],
)
def test_logs_follow_exits_as_the_job_did(server: JobsServer, fields: dict[str, object], code: ExitCode) -> None:
    two_hosts(server, **fields)
    assert run(["logs", "job", "-f"]) == code


def test_logs_mask_secrets_of_our_own_environment(
    server: JobsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test123")
    message = "last available logs\nbad token hf_test123"
    server.add_job("job", log=b"bad token hf_test123\n", status="FAILED", driver_exit_code=1, message=message)
    for command in (["logs", "job"], ["logs", "job", "-f"], ["jobs", "show", "job"], ["jobs", "ls", "-o", "json"]):
        run(command)
    shown = capsys.readouterr()
    assert "hf_test123" not in shown.out + shown.err
    assert "bad token ***" in shown.out


@pytest.mark.parametrize("interrupts", [1, 3])
def test_logs_follow_ctrl_c_lets_go_and_says_the_way_back(server: JobsServer, interrupts: int) -> None:
    job = server.add_job("job", log=b"ready\n")
    process = start_tpuctl(server, "logs", "job", "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(interrupts):
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.DETACHED
    assert out == ""
    assert err == "job job is still running; re-attach: tpuctl logs job -f; stop: tpuctl stop job\n"
    assert job.status == "RUNNING"


def test_logs_into_a_pipe_that_closes_leave_no_trace(server: JobsServer) -> None:
    server.add_job("job", log=b"".join(b"line %d\n" % n for n in range(100_000)))
    for arguments in (("logs", "job"), ("logs", "job", "-f")):
        process = start_tpuctl(server, *arguments)
        assert process.stdout is not None
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) in (0, 141)
        process.stderr.close()


def test_logs_follow_of_a_dropped_stream_never_exits_before_the_job(server: JobsServer) -> None:
    job = server.add_job("job", log=b"a\n", streams=[Stream(send_bytes=2, then="drop")])
    process = start_tpuctl(server, "logs", "job", "-f")
    job.wait_for_stream(2, timeout=30)
    job.print(b"b")
    job.end("FAILED", driver_exit_code=-9)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (ExitCode.JOB_FAILED, "a\nb\n")
    assert "killed by SIGKILL (exit code -9)" in err


def test_logs_on_a_terminal_that_lacks_a_character_go_on(server: JobsServer) -> None:
    server.add_job("job", log="größe\nend\n".encode(), status="SUCCEEDED")
    out, err = start_tpuctl(server, "logs", "job", PYTHONIOENCODING="ascii").communicate(timeout=30)
    assert (out, err) == ("gr\\xf6\\xdfe\nend\n", "")


def test_stop_waits_for_the_end_and_says_it(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.add_job("job")
    assert run(["stop", "job"]) == 0
    assert capsys.readouterr().out == "job job stopped\n"


def test_stop_without_waiting_only_asks(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.add_job("job", end_when_stopped=None)
    assert run(["stop", "job", "--no-wait"]) == 0
    assert capsys.readouterr().out == "job job is told to stop\n"


def test_stop_of_an_ended_job_says_how_it_ended(server: JobsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.add_job("job", status="SUCCEEDED")
    assert run(["stop", "job", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "tpuctl.stop/1", "id": "job", "status": "SUCCEEDED", "asked": False,
    }  # fmt: skip
    assert run(["stop", "nope"]) == ExitCode.USAGE
