"""The border of the program: every failure is words and an exit code, and one line of JSON where that was asked for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpuctl.cli.app import run

TPUCTL = [sys.executable, "-m", "tpuctl"]


def tpuctl(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([*TPUCTL, *words], capture_output=True, text=True, cwd=cwd, env=environ, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("check", "nope.toml", "-o", "json"), 2),
        (("plan", "-o", "json"), 2),
        (("jobs", "ls", "-qojson", "--cluster", "http://127.0.0.1:1"), 3),
        (("jobs", "ls", "--output=json", "--cluster", "http://[::1"), 2),
        (("jobs", "ls", "-o", "json", "--cluster", "http://user:pw@127.0.0.1:1"), 2),
        (("logs", "x", "-f", "-o", "json", "--cluster", "127.0.0.1:1"), 3),
    ],
)
def test_failure_with_json_asked_for_is_one_line_of_json_and_its_code(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = tpuctl(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    document = json.loads(line)
    assert (document["schema"], document["exit_code"]) == ("tpuctl.error/1", code)
    assert "Traceback" not in done.stderr
    assert ":pw" not in done.stdout + done.stderr


def test_failure_of_a_recipe_called_json_prints_no_document(tmp_path: Path) -> None:
    done = tpuctl("check", "json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_failure_into_a_pipe_that_is_closed_shows_no_traceback(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    reader, writer = os.pipe()
    os.close(reader)
    command = [*TPUCTL, "check", "nope.toml", "-o", "json"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ, check=False
    )
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "said"), [(("schema",), 1), (("check", "nope.toml", "-o", "json"), 2), (("-h",), 1)])
def test_stdout_on_a_full_disk_is_a_plain_error(words: tuple[str, ...], said: int, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*TPUCTL, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count("tpuctl: error:") == said
    assert "stdout can't be written: No space left on device" in done.stderr
    assert "internal" not in done.stderr


@pytest.mark.parametrize(
    "words", [("jobs", "ls"), ("serve", "ls"), ("cluster", "status"), ("logs", "x"), ("stop", "x")]
)
def test_verb_that_finds_no_cluster_says_how_to_have_one(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    for name in ("TPUCTL_CLUSTER", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert run(list(words)) == 3
    err = capsys.readouterr().err
    assert all(way in err for way in ("--cluster", "TPUCTL_CLUSTER", "tpuctl cluster up"))


def test_interrupt_while_the_program_is_still_starting_is_quiet(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "tpuctl", "slices"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environ,
    )
    assert process.stderr is not None
    deadline = time.monotonic() + 30
    # Interpreter start-up is Python's own; from tpuctl's first module on, Ctrl-C is ours.
    while "typer" not in process.stderr.readline() and time.monotonic() < deadline:
        pass
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    assert process.returncode in (130, 0)
    assert "Traceback" not in err
