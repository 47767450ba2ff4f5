"""Batch inference as a user types it: processes killed at random moments, every row there once in the end."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import BUCKET
from tests.e2e.command import Command, Done
from tests.e2e.killing import CLUSTER, DRIVER, HOST, RUNNER, WORKER, break_off, kill_one, wait_for_more
from tests.fakes.gcs_process import GcsService
from tests.fakes.model_folders import CONFIG, write_model
from tests.infer.inputs import data_bytes, read
from tests.infer.word_folders import write_words

pytestmark = pytest.mark.ray

ROWS = 5008
BAD_ROW = 1234
KILLS = int(os.environ.get("TPUCTL_TEST_KILLS", "5"))
VICTIMS = (WORKER, WORKER, DRIVER, WORKER, HOST, WORKER, CLUSTER, WORKER, WORKER, DRIVER)
FUNCTION = """
import os
import random
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


@pytest.mark.slow
def test_infer_killed_at_random_moments_leaves_the_bytes_of_the_unbroken_run(
    tpuctl: Command, unbroken: Done, recipe, folder: Path
) -> None:
    began = time.monotonic()
    # Long enough that there is work left to be broken off by the last of them.
    path = recipe("broken", pause=0.1 + 0.02 * KILLS)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    said = break_off(tpuctl, path, victims=victims, count_parts=lambda: len(list((folder / "broken").glob("part-*"))))
    assert "its process died" in said, said
    left = len(list((folder / "unbroken").glob("part-*"))) - len(list((folder / "broken").glob("part-*")))
    assert left > 0, "all was done before the last kill: it tried nothing"
    last = tpuctl("infer", path, "--wait", "120", "--set", "job.env.PAUSE=0")
    assert last.code == 0, last.everything
    manifest = json.loads((folder / "broken" / "_manifest.json").read_text())
    assert (manifest["works"][0]["rows"], manifest["works"][0]["quarantined"]) == (ROWS - 1, 1)
    assert data_bytes(folder / "broken") == data_bytes(folder / "unbroken")
    print(f"{KILLS} kills over {ROWS:,} rows in {time.monotonic() - began:.0f} s, {left} parts left after the last")


@pytest.mark.slow
def test_infer_killed_in_a_bucket_while_requests_fail_leaves_the_bytes_of_the_unbroken_run(
    tpuctl: Command, recipe, folder: Path, gcs: GcsService
) -> None:
    for path in (folder / "in").glob("*.parquet"):
        gcs.buckets.put(BUCKET, f"in/{path.name}", path.read_bytes(), query={}, metadata={})
    command, rows = tpuctl.within(TPUCTL_GCS_ENDPOINT=gcs.endpoint), ("--set", f"data.uri=gs://{BUCKET}/in")
    whole = command("infer", recipe("whole"), *rows, "--set", f"output.uri=gs://{BUCKET}/whole")
    assert whole.code == 0, whole.everything
    broken = (recipe("piecewise", pause=0.3), *rows, "--set", f"output.uri=gs://{BUCKET}/broken")
    fault = gcs.fail(every=7, times=None, status=503)
    victims = [WORKER, DRIVER, WORKER, HOST]
    break_off(command, *broken, victims=victims, count_parts=lambda: len(_parts(gcs, "broken")))
    assert len(_parts(gcs, "broken")) < len(_parts(gcs, "whole")), "all was done before the last kill"
    last = command("infer", *broken, "--wait", "120", "--set", "job.env.PAUSE=0")
    assert last.code == 0, last.everything
    assert fault.hits > 10
    gcs.serve_well()
    assert _parts(gcs, "broken") == _parts(gcs, "whole")


def _parts(gcs: GcsService, folder: str) -> dict[str, bytes]:
    """The data files below a folder of the bucket, by name."""
    names = [name for name in gcs.buckets.of(BUCKET) if name.startswith(f"{folder}/") and name.endswith(".parquet")]
    return {name.partition("/")[2]: gcs.buckets.of(BUCKET)[name].data for name in names}


@pytest.mark.slow
def test_infer_of_fewer_rows_than_hosts_and_of_a_function_that_is_not_there(
    tpuctl: Command, recipe, folder: Path
) -> None:
    few = tpuctl("infer", recipe("few"), "--set", "data.limit=1")
    assert few.code == 0, few.everything
    assert read(folder / "few")["id"].to_pylist() == [0]
    missing = tpuctl("infer", recipe("missing"), "--set", "task.function=work_of_mine:triple")
    assert missing.code == 2, missing.everything
    assert "work_of_mine has no function 'triple'" in missing.err, missing.everything


SIZES = {"hidden_size": 128, "vocab_size": 384, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}
ASKED = 160
GENERATE = """
kind = "infer"
[run]
name = "{name}"
[slice]
accelerator = "v4"
topology = "2x2x2"
[data]
uri = "asked"
[model]
source = "words"
[task]
kind = "generate"
replica = "slice"
dtype = "float32"
batch_rows = 8
max_length = 64
[sampling]
max_tokens = 24
[output]
uri = "{name}"
rows_per_part = 8
[job]
start_timeout = "300s"
compile_cache = "compiled"
max_failures = 2
"""


@pytest.fixture(scope="module")
def generate(folder: Path) -> Callable[[str], Path]:
    """A recipe of answers by a model that has a whole slice."""
    (folder / "words").mkdir()
    write_model(folder / "words", config=CONFIG | SIZES)
    write_words(folder / "words", SIZES["vocab_size"])
    (folder / "asked").mkdir()
    texts = [" ".join(f"w{(7 * row + 11 * at) % 380}" for at in range(1 + row % 9)) for row in range(ASKED)]
    pq.write_table(pa.table({"text": texts}), folder / "asked" / "0.parquet")

    def make(name: str) -> Path:
        path = folder / f"{name}.toml"
        path.write_text(GENERATE.format(name=name))
        return path

    return make


@pytest.fixture(scope="module")
def by_host(tpuctl: Command, generate: Callable[[str], Path], folder: Path) -> dict[str, bytes]:
    """What each host by itself makes of the same rows."""
    alone = tpuctl("infer", generate("by-host"), "--set", "task.replica=host", timeout_seconds=400)
    assert alone.code == 0, alone.everything
    assert read(folder / "by-host").num_rows == ASKED
    return data_bytes(folder / "by-host")


@pytest.mark.slow
def test_infer_by_a_slice_is_that_by_its_hosts_also_after_one_of_them_was_killed(
    tpuctl: Command, generate: Callable[[str], Path], folder: Path, by_host: dict[str, bytes]
) -> None:
    together = tpuctl("infer", generate("by-slice"), timeout_seconds=400)
    assert together.code == 0, together.everything
    assert "joined  1 of 1 slice, 8 devices each" in together.out, together.everything
    assert data_bytes(folder / "by-slice") == by_host

    process = tpuctl.start("infer", generate("by-slice-broken"))
    count_parts = lambda: len(list((folder / "by-slice-broken").glob("part-*")))  # noqa: E731
    wait_for_more(count_parts, running=process)
    kill_one(tpuctl, random.Random(0), RUNNER, running=process)
    assert count_parts() < ASKED // 8, "all was done before the kill"
    killed_at = time.monotonic()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    assert "restart 1, they are done again" in out, out + err
    assert data_bytes(folder / "by-slice-broken") == by_host
    print(f"done {time.monotonic() - killed_at:.0f} s after the kill")


@pytest.mark.slow
def test_infer_by_each_of_two_slices_is_that_by_hosts(
    tpuctl: Command, generate: Callable[[str], Path], folder: Path, by_host: dict[str, bytes]
) -> None:
    path = generate("by-slices")
    path.write_text(path.read_text().replace('topology = "2x2x2"', 'topology = "2x2x2"\nslices = 2'))
    done = tpuctl("infer", path, timeout_seconds=400)
    assert done.code == 0, done.everything
    assert "joined  2 of 2 slices, 8 devices each" in done.out, done.everything
    assert data_bytes(folder / "by-slices") == by_host
