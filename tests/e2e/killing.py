"""Breaking off jobs: what of a simulated cluster can be killed, and a command that is called again after each kill."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from tests.e2e.command import Command
from tpuctl.cluster.processes import MARKER_VARIABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Victim:
    """What is killed, by words of its command line; a job that ends with it is called again."""

    name: str
    words: tuple[str, ...]
    ends_job: bool = False


WORKER = Victim(name="worker", words=("ray::InferHost",))
RUNNER = Victim(name="runner", words=("ray::RunnerHost",))
DRIVER = Victim(name="driver", words=("tpuctl.entrypoints", "plan.json"), ends_job=True)
# The second host; it stays lost until the cluster is anew.
HOST = Victim(name="host", words=("raylet", "--raylet_socket_name", "raylet.1"))
# All hosts at once, the head's too. The command goes on looking for them for minutes; its user doesn't.
CLUSTER = Victim(name="cluster", words=("keeper.py",), ends_job=True)


def break_off(tpuctl: Command, *infer: object, victims: Sequence[Victim], count_parts: Callable[[], int]) -> str:
    """Call ``tpuctl infer``, kill these in turn at random moments, end it; what jobs said until they ended.

    Every other kill is at work, after one more part is done; the others are at any moment, while hosts start, too.
    """
    chance, said, lost_host = random.Random(0), "", False
    process = tpuctl.start("infer", *infer)
    for number, victim in enumerate(victims):
        if number % 2 == 0:
            wait_for_more(count_parts, running=process)
        time.sleep(chance.uniform(0.1, 3))
        kill_one(tpuctl, chance, victim, running=process)
        lost_host = lost_host or victim is HOST
        if not victim.ends_job:
            continue
        if victim is CLUSTER:
            process.kill()
        out, err = process.communicate(timeout=240)
        assert victim is CLUSTER or process.returncode == 1, out + err
        said += out
        _wait_for_none(tpuctl, WORKER)  # or the next kill would be of one that nobody waits for
        if lost_host:  # a cluster that isn't whole is not begun on
            assert tpuctl("cluster", "down", "--all").code == 0
            lost_host = False
        process = tpuctl.start("infer", *infer, "--wait", "60")
    process.kill()
    process.wait()
    assert tpuctl("cluster", "down", "--all").code == 0
    return said


def kill_one(tpuctl: Command, chance: random.Random, victim: Victim, *, running: subprocess.Popen[str]) -> None:
    """Kill one of them, as soon as there is one."""
    deadline = time.monotonic() + 120
    while not (found := _processes(tpuctl, *victim.words)):
        assert running.poll() is None, f"over before a {victim.name} was killed: {running.communicate()}"
        assert time.monotonic() < deadline, f"no {victim.name} came"
        time.sleep(0.1)
    chance.choice(found).send_signal(signal.SIGKILL)


def wait_for_more(count_parts: Callable[[], int], *, running: subprocess.Popen[str]) -> None:
    """Wait until one more part is done."""
    before, deadline = count_parts(), time.monotonic() + 180
    while count_parts() <= before:
        assert running.poll() is None, f"over before the last kill: {running.communicate()}"
        assert time.monotonic() < deadline, "no part is done"
        time.sleep(0.1)


def _wait_for_none(tpuctl: Command, victim: Victim) -> None:
    deadline = time.monotonic() + 120
    while _processes(tpuctl, *victim.words):
        assert time.monotonic() < deadline, f"a {victim.name} outlives its job"
        time.sleep(0.2)


def _processes(tpuctl: Command, *words: str) -> list[psutil.Process]:
    """The cluster's processes whose command line has all the words, but for shells around them."""
    markers = {json.loads(path.read_text())["marker"] for path in tpuctl.state_dir.glob("clusters/*/state.json")}
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):  # what is ending has neither
        command, environ = process.info["cmdline"] or [""], process.info["environ"] or {}
        if environ.get(MARKER_VARIABLE) not in markers or command[0].endswith("sh"):
            continue
        if all(word in " ".join(command) for word in words):
            found.append(process)
    return found
