"""The border of the program: every failure is words and an exit code, and one line of JSON where that was asked for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
