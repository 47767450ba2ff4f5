"""A command on a leash: it ends when whoever started it lets go or dies, and tells its exit code."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

LEASH = [sys.executable, "-m", "tpuctl.entrypoints.leash"]


def on_leash(*command: str, grace: float = 20) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*LEASH, str(grace), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.mark.parametrize("argument", ["a b", "`id`", "$HOME", "it's", "two\nlines", "*", ""])
def test_leash_passes_every_word_byte_for_byte(argument: str) -> None:
    process = on_leash(*python("import sys; print(sys.argv[1:])", argument))
    assert process.stdout is not None
    assert process.stdout.read() == f"{[argument]}\n"
    process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (python("raise SystemExit(3)"), 3),
        (python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), 128 + 9),
        (["/no/such/program"], 127),
    ],
)
def test_leash_ends_with_the_code_of_its_command(command: list[str], code: int) -> None:
    process = on_leash(*command)
    assert process.wait(timeout=20) == code
    process.communicate()


def test_leash_let_go_gives_the_command_time_to_end() -> None:
    code = (
        "import signal, sys, threading\n"
        "def save(*_):\n    print('saved', flush=True)\n    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = on_leash(*python(code))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("saved\n", 5)


def test_leash_let_go_kills_a_command_that_will_not_end_and_all_it_started() -> None:
    code = (
        "import signal, subprocess, sys, threading\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        "print(child.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = on_leash(*python(code), grace=0.2)
    assert process.stdout is not None
    grandchild = psutil.Process(int(process.stdout.readline()))
    process.communicate(timeout=20)
    assert process.returncode == 128 + 9
    psutil.wait_procs([grandchild], timeout=10)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
