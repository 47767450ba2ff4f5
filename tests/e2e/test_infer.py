"""Batch inference as a user types it: processes killed at random moments, every row there once in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.command import Command, Done
from tests.infer.inputs import data_bytes, read
from tpuctl.cluster.processes import MARKER_VARIABLE

pytestmark = pytest.mark.ray

ROWS = 5008
BAD_ROW = 1234
KILLS = int(os.environ.get("TPUCTL_TEST_KILLS", "5"))
FUNCTION = """
import os
import time

def double(batch, mask):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if 1234.0 in batch["x"][mask]:
        raise ValueError("this row is bad")
    return {"y": batch["x"] * 2}
"""
RECIPE = """
kind = "infer"
[run]
name = "{name}"
[slice]
accelerator = "v4"
topology = "2x2x2"
[data]
uri = "in"
[task]
kind = "custom"
function = "work_of_mine:double"
inputs = ["x"]
batch_rows = 16
[output]
uri = "{name}"
rows_per_part = 64
[job]
start_timeout = "90s"
max_failures = 100
env = {{ PAUSE = "{pause}" }}
"""


@pytest.fixture(scope="module")
def folder(tpuctl: Command) -> Path:
    """The directory the command is called in, with rows and a function in it."""
    root = tpuctl.cwd
    (root / "in").mkdir()
    for part in range(2):
        ids = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        table = pa.table({"id": list(ids), "x": pa.array(ids, pa.float32()), "text": [f"row {n}" for n in ids]})
        pq.write_table(table, root / "in" / f"{part}.parquet", row_group_size=500)
    (root / "work_of_mine.py").write_text(FUNCTION)
    return root


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Callable[..., Path]:
    def make(name: str, *, pause: float = 0) -> Path:
        path = folder / f"{name}.toml"
        path.write_text(RECIPE.format(name=name, pause=pause))
        return path

    return make


@pytest.fixture(scope="module")
def unbroken(tpuctl: Command, recipe: Callable[..., Path]) -> Done:
    return tpuctl("infer", recipe("unbroken"))


def processes(tpuctl: Command, *words: str) -> list[psutil.Process]:
    """The cluster's processes whose command line has all the words."""
    markers = {json.loads(path.read_text())["marker"] for path in tpuctl.state_dir.glob("clusters/*/state.json")}
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):  # what is ending has neither
        line, environ = " ".join(process.info["cmdline"] or []), process.info["environ"] or {}
        if environ.get(MARKER_VARIABLE) in markers and all(word in line for word in words):
            found.append(process)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Victim:
    """What is killed, by words of its command line; a job that ends with it is called again."""

    name: str
    words: tuple[str, ...]
    ends_job: bool = False


WORKER = Victim(name="worker", words=("ray::InferHost",))
DRIVER = Victim(name="driver", words=("tpuctl.entrypoints", "plan.json"), ends_job=True)
HOST = Victim(name="host", words=("raylet", "--raylet_socket_name", "raylet.1"))
# All hosts at once, the head's too. The command goes on looking for them for minutes; its user doesn't.
CLUSTER = Victim(name="cluster", words=("keeper.py",), ends_job=True)
VICTIMS = (WORKER, WORKER, DRIVER, WORKER, HOST, WORKER, CLUSTER, WORKER, WORKER, DRIVER)


def kill_one(tpuctl: Command, chance: random.Random, victim: Victim, *, running: subprocess.Popen[str]) -> None:
    """Kill one of them, as soon as there is one."""
    deadline = time.monotonic() + 120
    while not (found := processes(tpuctl, *victim.words)):
        assert running.poll() is None, f"over before a {victim.name} was killed: {running.communicate()}"
        assert time.monotonic() < deadline, f"no {victim.name} came"
        time.sleep(0.1)
    chance.choice(found).send_signal(signal.SIGKILL)


def test_infer_two_hosts_ends_well_with_rows_quarantine_and_manifest(unbroken: Done, folder: Path) -> None:
    assert unbroken.code == 0, unbroken.everything
    assert f"row {ROWS:,} of {ROWS:,}" in unbroken.out, unbroken.everything
    assert "row_file\trow_group\trow_index\tid" in unbroken.out, unbroken.everything
    assert f"{ROWS - 1:,} rows in {-(-ROWS // 64)} parts, 1 in quarantine" in unbroken.err, unbroken.everything
    table = read(folder / "unbroken")
    assert table["id"].to_pylist() == [n for n in range(ROWS) if n != BAD_ROW]
    assert table["y"].to_pylist() == [2.0 * n for n in range(ROWS) if n != BAD_ROW]
    assert (folder / "unbroken" / "_SUCCESS").exists()


def test_infer_again_says_there_is_nothing_to_do(tpuctl: Command, unbroken: Done, recipe) -> None:
    done = tpuctl("infer", recipe("unbroken"))
    assert done.code == 0, done.everything
    assert "nothing to do" in done.err, done.everything


def test_infer_killed_at_random_moments_leaves_the_bytes_of_the_unbroken_run(
    tpuctl: Command, unbroken: Done, recipe, folder: Path
) -> None:
    chance, began = random.Random(0), time.monotonic()
    # Long enough that there is work left to be broken off by the last of them.
    path, calls, said = recipe("broken", pause=0.1 + 0.03 * KILLS), 1, ""
    lost_host = False
    process = tpuctl.start("infer", path)
    for number in range(KILLS):
        victim = VICTIMS[number % len(VICTIMS)]
        time.sleep(chance.uniform(0.5, 4))
        kill_one(tpuctl, chance, victim, running=process)
        lost_host = lost_host or victim is HOST
        if victim.ends_job:
            if victim is CLUSTER:
                process.kill()
            out, err = process.communicate(timeout=240)
            assert victim is CLUSTER or process.returncode == 1, out + err
            said, calls = said + out, calls + 1
            if lost_host:  # a cluster that isn't whole is not begun on
                assert tpuctl("cluster", "down", "--all").code == 0
                lost_host = False
            # The hosts of a driver that was killed are busy until the cluster has noticed.
            process = tpuctl.start("infer", path, "--wait", "60")
    process.kill()
    process.wait()
    assert tpuctl("cluster", "down", "--all").code == 0
    assert "its process died" in said, said
    left = len(list((folder / "unbroken").glob("part-*"))) - len(list((folder / "broken").glob("part-*")))
    assert left > 0, "all was done before the last kill: it tried nothing"
    last = tpuctl("infer", path, "--wait", "120", timeout_seconds=600)
    assert last.code == 0, last.everything
    manifest = json.loads((folder / "broken" / "_manifest.json").read_text())
    assert (manifest["works"][0]["rows"], manifest["works"][0]["quarantined"]) == (ROWS - 1, 1)
    assert data_bytes(folder / "broken") == data_bytes(folder / "unbroken")
    print(f"{KILLS} kills over {ROWS:,} rows, {calls + 1} calls, {time.monotonic() - began:.0f} s, {left} parts left")


def test_infer_of_fewer_rows_than_hosts_and_of_a_function_that_is_not_there(
    tpuctl: Command, recipe, folder: Path
) -> None:
    few = tpuctl("infer", recipe("few"), "--set", "data.limit=1")
    assert few.code == 0, few.everything
    assert read(folder / "few")["id"].to_pylist() == [0]
    missing = tpuctl("infer", recipe("missing"), "--set", "task.function=work_of_mine:triple")
    assert missing.code == 2, missing.everything
    assert "work_of_mine has no function 'triple'" in missing.err, missing.everything
