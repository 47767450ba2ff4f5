"""One output row for each input row, whatever is broken off, done twice, or asked for again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.infer.inputs import Job, data_bytes, doubled, job, numbers, read
from tpuctl.errors import DataError, OutputError, StorageError
from tpuctl.infer.folder import read_manifest
from tpuctl.storage import LocalStorage


def counting(seen: list[int]):
    def function(batch, mask):
        seen.append(int(mask.sum()))
        return doubled(batch, mask)

    return function


def test_job_every_row_is_there_once_in_order_with_its_id(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 7, 0, 12)
    entry = Job(job(tmp_path / "in", tmp_path / "out")).run()
    table = read(tmp_path / "out")
    assert table["id"].to_pylist() == list(range(19))
    assert table["y"].to_pylist() == [2.0 * n for n in range(19)]
    ids = list(zip(*(table[name].to_pylist() for name in ("row_file", "row_group", "row_index")), strict=True))
    assert ids[:8] == [("f0.parquet", n // 5, n % 5) for n in range(7)] + [("f2.parquet", 0, 0)]
    assert (entry["rows"], entry["quarantined"], [part["rows"] for part in entry["parts"]]) == (19, 0, [4, 4, 4, 4, 3])
    for part in entry["parts"]:
        assert (tmp_path / "out" / part["file"]).stat().st_size == part["bytes"]
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_job_rows_stand_in_the_order_of_the_input_within_a_part(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 30)
    Job(job(tmp_path / "in", tmp_path / "out")).run()
    ids = [pq.read_table(path)["id"].to_pylist() for path in sorted((tmp_path / "out").glob("part-*.parquet"))]
    assert [n for part in ids for n in part] == list(range(30))


def test_job_broken_off_after_any_part_is_finished_and_equal_byte_for_byte(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 20, 20)
    Job(job(tmp_path / "in", tmp_path / "whole")).run()
    for stop in range(5):
        output = tmp_path / f"out{stop}"
        running = Job(job(tmp_path / "in", output)).parts()
        for _ in range(stop):
            next(running)
        seen: list[int] = []
        Job(job(tmp_path / "in", output), counting(seen)).run()
        assert sum(seen) == 40 - 8 * stop
        assert data_bytes(output) == data_bytes(tmp_path / "whole")


def test_job_finished_before_is_found_finished(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 20)
    Job(job(tmp_path / "in", tmp_path / "out")).run()
    again = Job(job(tmp_path / "in", tmp_path / "out"))
    assert again.folder.finished


class Failing(LocalStorage):
    """Fails at the nth write, before or after it took place."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self.after = at, after

    def write(self, uri, data, *, if_generation=None):
        self.left -= 1
        if self.left == 0 and not self.after:
            raise StorageError(f"{uri}: the disk is gone")
        found = super().write(uri, data, if_generation=if_generation)
        if self.left == 0:
            raise StorageError(f"{uri}: the answer was lost")
        return found


@pytest.mark.parametrize("after", [False, True])
def test_job_whose_storage_fails_at_any_write_is_finished_and_equal(tmp_path: Path, monkeypatch, after) -> None:
    numbers(tmp_path / "in", 24)

    def failing(batch, mask):
        if 13.0 in batch["x"][mask]:
            raise ValueError("unlucky")
        return doubled(batch, mask)

    Job(job(tmp_path / "in", tmp_path / "whole"), failing).run()
    failures = 0
    for at in range(1, 14):
        plan = job(tmp_path / "in", tmp_path / f"out{at}")
        with monkeypatch.context() as patched:
            storage = Failing(at, after=after)
            for module in ("output", "folder"):
                patched.setattr(f"tpuctl.infer.{module}.open_storage", lambda _, storage=storage: storage)
            try:
                Job(plan, failing).run()
            except StorageError:
                failures += 1
        second = Job(plan, failing)
        entry = read_manifest(plan.output.uri)[0] if second.folder.finished else second.run()
        assert (entry["rows"], entry["quarantined"]) == (23, 1)
        assert data_bytes(plan.output.uri) == data_bytes(tmp_path / "whole")
    assert failures >= 10


def test_part_done_by_two_workers_stays_the_first_ones(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 8)
    plan = job(tmp_path / "in", tmp_path / "out")
    first, second = Job(plan), Job(plan, lambda batch, mask: {"y": batch["x"] * 3})
    assert next(first.parts()) == second.replica.do(_parts(second)[0]).record
    assert read(tmp_path / "out")["y"].to_pylist() == [0.0, 2.0, 4.0, 6.0]


def _parts(one: Job):
    from tpuctl.infer.parts import cut

    return cut(one.folder.work.rows, part_rows=one.folder.work.part_rows)


def test_resume_of_a_changed_input_is_refused(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 20)
    next(Job(job(tmp_path / "in", tmp_path / "out")).parts())
    pq.write_table(pa.table({"id": [9], "x": [1.0]}), tmp_path / "in" / "f0.parquet")
    with pytest.raises(OutputError, match="has changed"):
        Job(job(tmp_path / "in", tmp_path / "out"))


def test_resume_with_another_number_of_drafts_is_the_same_work(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 20)
    next(Job(job(tmp_path / "in", tmp_path / "out")).parts())
    again = Job(job(tmp_path / "in", tmp_path / "out", speculate=4))
    assert len(again.folder.output.done()) == 1
    assert "speculate" not in again.work.task


def test_resume_of_another_task_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 20)
    Job(job(tmp_path / "in", tmp_path / "out")).run()
    with pytest.raises(OutputError, match="its task differs in function"):
        Job(job(tmp_path / "in", tmp_path / "out", function="m:g"))


def test_resume_in_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 3)
    numbers(tmp_path / "out", 3)
    with pytest.raises(OutputError, match=r"f0\.parquet"):
        Job(job(tmp_path / "in", tmp_path / "out"))


def test_resume_on_more_hosts_keeps_the_cut_of_the_parts_that_are_there(tmp_path: Path) -> None:
    from dataclasses import replace

    numbers(tmp_path / "in", 40)
    plan = job(tmp_path / "in", tmp_path / "out", rows_per_part=40, batch_rows=2)
    next(Job(plan).parts())
    more = replace(plan, slice=replace(plan.slice, hosts=5))
    assert Job(more).work.part_rows != Job(plan).work.part_rows
    assert Job(more).run()["rows"] == 40
    assert read(tmp_path / "out")["id"].to_pylist() == list(range(40))


def test_mode_error_refuses_before_any_work_and_names_the_path(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 90)
    plan = job(tmp_path / "in", tmp_path / "out", mode="error")
    Job(plan).run()
    seen: list[int] = []
    with pytest.raises(OutputError, match=str(tmp_path / "out")):
        Job(plan, counting(seen))
    assert seen == []


def test_mode_overwrite_leaves_the_rows_of_one_run(tmp_path: Path) -> None:
    numbers(tmp_path / "old", 5)
    numbers(tmp_path / "in", 60)
    Job(job(tmp_path / "old", tmp_path / "out"), _unlucky_at_3).run()
    assert list((tmp_path / "out" / "_quarantine").iterdir())
    for _ in range(2):
        Job(job(tmp_path / "in", tmp_path / "out", mode="overwrite")).run()
    assert read(tmp_path / "out", pattern="**/[!_]*.parquet")["id"].to_pylist() == list(range(60))


def _unlucky_at_3(batch, mask):
    if 3.0 in batch["x"][mask]:
        raise ValueError("unlucky")
    return doubled(batch, mask)


@pytest.mark.parametrize(
    ("name", "content", "beside_output"),
    [
        ("thesis.txt", "years of work", False),
        ("thesis.txt", "years of work", True),
        ("model.safetensors", "", True),
        ("more/f0.parquet", "PAR1", True),
        ("part-of-mine.parquet", "PAR1", True),
        ("_tpuctl/notes", "mine", True),
        ("_SUCCESS", "", False),
        ("_manifest.json", "{}", False),
        ("_manifest.json", "[]", False),
    ],
)
def test_mode_overwrite_deletes_nothing_where_anything_is_not_of_a_job(
    tmp_path: Path, name: str, content: str, beside_output: bool
) -> None:
    numbers(tmp_path / "in", 6)
    if beside_output:
        Job(job(tmp_path / "in", tmp_path / "out")).run()
    (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / name).write_text(content)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(OutputError, match=re.escape(name)):
        Job(job(tmp_path / "in", tmp_path / "out", mode="overwrite"))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_mode_append_adds_an_input_once(tmp_path: Path) -> None:
    for name, count in (("one", 10), ("two", 5), ("two", 5)):
        numbers(tmp_path / name, count)
        plan = job(tmp_path / name, tmp_path / "out", mode="append")
        added = Job(plan)
        if not added.folder.finished:
            added.run()
    assert read(tmp_path / "out")["id"].to_pylist() == sorted([*range(10), *range(5)])
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert [work["rows"] for work in manifest["works"]] == [10, 5]


@pytest.mark.parametrize(("ragged", "rows"), [("pad", 10), ("drop", 8)])
def test_ragged_end_every_batch_has_one_shape_and_padding_is_masked(tmp_path: Path, ragged, rows) -> None:
    numbers(tmp_path / "in", 5, 1, 4)
    shapes, seen = set(), []

    def function(batch, mask):
        shapes.add((batch["x"].shape, mask.shape))
        seen.extend(batch["x"][mask])
        return doubled(batch, mask)

    entry = Job(job(tmp_path / "in", tmp_path / "out", ragged=ragged), function).run()
    assert (entry["rows"], entry["dropped"]) == (rows, 10 - rows)
    assert shapes == {((4,), (4,))}
    assert seen == list(range(rows))


def test_ragged_end_raise_says_how_many_are_over(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 10)
    with pytest.raises(DataError, match="2 are over"):
        Job(job(tmp_path / "in", tmp_path / "out", ragged="raise"))


def test_job_of_no_rows_leaves_one_empty_part_with_all_columns(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 0, 0)
    entry = Job(job(tmp_path / "in", tmp_path / "out")).run()
    table = read(tmp_path / "out")
    assert (entry["rows"], table.num_rows) == (0, 0)
    assert table.schema.field("y").type == pa.float32()


def test_limit_takes_the_first_rows(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 7, 9)
    Job(job(tmp_path / "in", tmp_path / "out", limit=10)).run()
    assert read(tmp_path / "out")["id"].to_pylist() == list(range(10))


def test_function_compiled_by_jax_compiles_once(tmp_path: Path) -> None:
    import jax

    numbers(tmp_path / "in", 5, 1, 9)
    traced: list[int] = []

    @jax.jit
    def forward(x):
        traced.append(1)
        return x.astype(jax.numpy.bfloat16) * 2

    Job(job(tmp_path / "in", tmp_path / "out"), lambda batch, mask: {"y": forward(batch["x"])}).run()
    assert len(traced) == 1
    table = read(tmp_path / "out")
    assert table.schema.field("y").type == pa.float32()
    np.testing.assert_array_equal(table["y"].to_numpy(), 2.0 * np.arange(15))
