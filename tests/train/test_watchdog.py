from __future__ import annotations

import subprocess
import sys
import threading

from tpuctl.train.watchdog import Watchdog

HANGING = """
import threading
from tpuctl.train.watchdog import Watchdog, end_process

def stuck_in_a_collective():
    threading.Event().wait()

with Watchdog(seconds=0.2, on_silence=end_process):
    stuck_in_a_collective()
"""


def test_watchdog_without_a_beat_calls() -> None:
    called = threading.Event()

    with Watchdog(seconds=0.01, on_silence=called.set):
        assert called.wait(30)


def test_watchdog_with_beats_keeps_quiet() -> None:
    called = threading.Event()

    with Watchdog(seconds=0.5, on_silence=called.set) as watchdog:
        for _ in range(20):
            assert not called.wait(0.05)
            watchdog.beat()


def test_watchdog_after_its_end_keeps_quiet() -> None:
    called = threading.Event()

    with Watchdog(seconds=1.0, on_silence=called.set):
        pass

    assert not called.wait(1.5)


def test_hanging_process_ends_non_zero_with_all_stacks_in_its_log() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert "stuck_in_a_collective" in ended.stderr
    assert "Thread" in ended.stderr
