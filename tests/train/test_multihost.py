"""Runs of real processes, joined by ``jax.distributed`` over loopback: what one process can't show."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuctl.runs.events import Event, parse_line

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120


class Process:
    """A host of the toy run, and the lines it has printed."""

    def __init__(self, options: dict[str, Any], *, devices: int, log: Path) -> None:
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        }
        self.lines: list[str] = []
        self.log = log
        with log.open("w") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.toy_host", json.dumps(options)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def until(self, wanted: str) -> str:
        """Read lines up to the first that contains ``wanted``."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip())
            if wanted in line:
                return line
        raise AssertionError(f"never printed {wanted!r}:\n{self.text()}")

    def end(self) -> int:
        """Read to the end; the exit code."""
        assert self.popen.stdout is not None
        try:
            rest, _ = self.popen.communicate("\n", timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise AssertionError(f"did not end:\n{self.text()}") from None
        self.lines += rest.splitlines()
        return self.popen.returncode

    def kill(self) -> None:
        """kill -9."""
        self.popen.kill()
        self.popen.wait()

    def told(self, name: str, field: str = "step") -> list[Any]:
        """One field of all events of a name."""
        return [item[field] for item in self.events() if item["event"] == name]

    def losses(self) -> dict[int, float]:
        return dict(zip(self.told("step"), self.told("step", "loss"), strict=True))

    def events(self) -> list[Event]:
        return [item for line in self.lines if (item := parse_line(line)) is not None]

    def text(self) -> str:
        return "\n".join([*self.lines, self.log.read_text()])


class Fleet:
    """Starts hosts, and leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: list[Process] = []

    def start(
        self, *, hosts: int = 2, devices: int = 2, per_host: dict[int, Any] | None = None, **options: Any
    ) -> list[Process]:
        """One process per host; ``per_host`` adds options for one of them."""
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        started = []
        for host in range(hosts):
            chosen = {"directory": str(self._directory), **options, **(per_host or {}).get(host, {})}
            log = self._directory.parent / f"host-{len(self._all)}.log"
            process = Process({"host": host, "hosts": hosts, "port": port, **chosen}, devices=devices, log=log)
            self._all.append(process)
            started.append(process)
        return started

    def close(self) -> None:
        for process in self._all:
            if process.popen.poll() is None:
                process.kill()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "run").mkdir()
    fleet = Fleet(tmp_path / "run")
    yield fleet
    fleet.close()


def finished(processes: list[Process]) -> list[Process]:
    for process in processes:
        assert process.end() == 0, process.text()
    return processes


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Process]]]:
    directory = tmp_path_factory.mktemp("unbroken") / "run"
    directory.mkdir()
    fleet = Fleet(directory)
    yield directory, finished(fleet.start())
    fleet.close()


def arrays_of(directory: Path, step: int) -> dict[str, Any]:
    """The arrays of a checkpoint, read by Orbax alone."""
    import numpy as np
    import orbax.checkpoint as ocp

    path = directory / "checkpoints" / str(step)
    handler = ocp.PyTreeCheckpointer()
    names = handler.metadata(path).item_metadata.tree
    arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    arrays: dict[str, Any] = handler.restore(path, restore_args=arguments)
    return arrays


def assert_same_arrays(left: Path, right: Path, *, step: int) -> None:
    import numpy as np

    a, b = arrays_of(left, step), arrays_of(right, step)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_two_hosts_run_to_the_end_and_only_the_first_tells(unbroken: tuple[Path, list[Process]]) -> None:
    _, (first, second) = unbroken

    assert first.told("host", "host") + second.told("host", "host") == [0, 1]
    assert first.told("host", "devices") == [2]
    assert first.told("step") == list(range(1, 13))
    assert [item["event"] for item in second.events()] == ["host"]
    assert "result 12 None" in first.lines
    assert "result 12 None" in second.lines


@pytest.mark.slow
def test_kill_of_one_host_then_resume_equals_the_unbroken_run(
    unbroken: tuple[Path, list[Process]], fleet: Fleet, tmp_path: Path
) -> None:
    directory, (reference, _) = unbroken
    first, second = fleet.start(plan={"train__steps": 1000}, checkpoint_timeout_seconds=10)
    first.until('"checkpoint"')
    second.kill()
    # By the error of its collective, or by the time-out of a save's meeting.
    assert first.end() != 0, first.text()

    resumed, _ = finished(fleet.start())

    [start] = resumed.told("resume")
    assert start % 4 == 0
    assert resumed.losses() == {step: loss for step, loss in reference.losses().items() if step > start}
    assert_same_arrays(directory, tmp_path / "run", step=12)


@pytest.mark.slow
def test_kill_during_an_async_save_resumes_from_the_one_before_and_saves_again(
    unbroken: tuple[Path, list[Process]], fleet: Fleet, tmp_path: Path
) -> None:
    directory, (reference, _) = unbroken
    hosts = fleet.start(hang_in_commit=8)
    hosts[0].until("in commit")
    for host in hosts:
        host.kill()
    assert (tmp_path / "run/checkpoints/8.orbax-checkpoint-tmp").exists()

    resumed, _ = finished(fleet.start())

    assert resumed.told("resume") == [4]
    assert "its save never finished" in resumed.told("note", "text")[0]
    assert resumed.told("checkpoint") == [8, 12]
    assert resumed.losses() == {step: loss for step, loss in reference.losses().items() if step > 4}
    assert_same_arrays(directory, tmp_path / "run", step=12)
    assert not list((tmp_path / "run/checkpoints").glob("*tmp*"))


@pytest.mark.slow
def test_two_hosts_resumed_as_one_go_on_in_the_same_stream(
    unbroken: tuple[Path, list[Process]], fleet: Fleet, tmp_path: Path
) -> None:
    directory, (reference, _) = unbroken
    finished(fleet.start(plan={"train__steps": 4}))

    [alone] = finished(fleet.start(hosts=1, devices=4))

    assert alone.told("resume") == [4]
    assert alone.losses() == pytest.approx(
        {step: loss for step, loss in reference.losses().items() if step > 4}, rel=1e-5
    )
    ours, theirs = arrays_of(tmp_path / "run", 12), arrays_of(directory, 12)
    assert ours["cursor"].tolist() == theirs["cursor"].tolist()


@pytest.mark.slow
def test_notice_of_preemption_on_one_host_saves_and_ends_all_at_the_same_step_for_that_reason(fleet: Fleet) -> None:
    plan = {"train__steps": 100_000, "checkpoint__every": 0}
    hosts = fleet.start(plan=plan, per_host={1: {"stop_at": 0, "reason": "PREEMPTED"}})

    first, second = finished(hosts)

    [step] = first.told("stopped")
    assert first.told("stopped", "reason") == ["host about to be preempted"]
    assert f"result {step} host about to be preempted" in first.lines
    assert f"result {step} host about to be preempted" in second.lines
    assert first.told("checkpoint", "kind") == ["stop"]


@pytest.mark.slow
def test_data_that_ends_earlier_on_one_host_ends_all_at_the_same_step(fleet: Fleet) -> None:
    plan = {"data__epochs": 1, "data__ragged": "pad", "train__steps": 100}

    first, second = finished(fleet.start(plan=plan, length=[6, 6, 6, 6, 3, 4, 4, 4]))

    assert first.told("step") == list(range(1, 7))
    assert "result 6 None" in first.lines
    assert "result 6 None" in second.lines


@pytest.mark.slow
def test_host_missing_at_a_save_is_named_in_bounded_time(fleet: Fleet) -> None:
    first, second = fleet.start(checkpoint_timeout_seconds=3, per_host={1: {"stall_before_save": True}})
    second.until("stalled")

    assert first.end() == 1
    assert any("save of step 4: not all hosts came within 3 s: missing hosts 1" in line for line in first.lines)
    second.end()


def test_hung_host_ends_the_attempt_on_all_with_a_reason(fleet: Fleet) -> None:
    plan = {"train__steps": 100_000, "checkpoint__every": 0}
    first, second = fleet.start(plan=plan, watchdog_seconds=4, per_host={0: {"hang_at": 2}})

    assert (first.end(), second.end()) == (1, 1)
    # Whose watchdog barks first ends the other too, by the error of its collective.
    reasons = first.told("failed", "reason") + second.told("failed", "reason")
    assert reasons
    assert all("no step finished for 4 s after step" in reason for reason in reasons)
    assert "Thread 0x" in first.log.read_text() + second.log.read_text()


def test_hosts_with_directories_of_their_own_are_refused_before_training(fleet: Fleet, tmp_path: Path) -> None:
    first, second = fleet.start(per_host={1: {"directory": str(tmp_path / "elsewhere")}})

    assert (first.end(), second.end()) == (1, 1)
    for host in (first, second):
        assert any("hosts 1 do not see what host 0 writes to" in line for line in host.lines), host.text()
        assert host.told("step") == []


@pytest.mark.slow
def test_failed_background_save_on_the_first_host_fails_the_run(fleet: Fleet) -> None:
    first, second = fleet.start(fail_in_commit=4, plan={"train__steps": 1000})

    assert first.end() == 1
    assert any("step 4 failed in the background" in line and "No space left" in line for line in first.lines)
    assert second.end() != 0
