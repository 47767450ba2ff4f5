"""The same in a bucket: parts are there once, whole or not at all, also when its service fails in between."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import BUCKET
from tests.infer.inputs import Job, doubled, job, numbers
from tpuctl.errors import OutputError
from tpuctl.infer.folder import read_manifest
from tpuctl.storage import join, open_storage

OUTPUT = f"gs://{BUCKET}/out"


def upload(folder: Path, uri: str) -> None:
    for path in folder.iterdir():
        open_storage(uri).put_file(path, join(uri, path.name))


def rows_of(uri: str) -> list[int]:
    import io

    storage = open_storage(uri)
    parts = [name for name in storage.list(uri) if "/part-" in name]
    return [n for name in parts for n in pq.read_table(io.BytesIO(storage.read(name).data))["id"].to_pylist()]


@pytest.fixture
def rows(gcs, tmp_path: Path) -> str:
    upload(numbers(tmp_path / "in", 11, 13), f"gs://{BUCKET}/in")
    return f"gs://{BUCKET}/in"


def test_job_from_bucket_to_bucket_broken_off_and_finished_has_every_row_once(rows: str) -> None:
    running = Job(job(rows, OUTPUT)).parts()
    next(running)
    next(running)
    seen: list[int] = []

    def function(batch, mask):
        seen.append(int(mask.sum()))
        return doubled(batch, mask)

    entry = Job(job(rows, OUTPUT), function).run()
    assert (entry["rows"], sum(seen)) == (24, 24 - 2 * 4)
    assert rows_of(OUTPUT) == list(range(24))
    assert Job(job(rows, OUTPUT)).folder.finished
    assert read_manifest(OUTPUT)[0]["rows"] == 24


def test_part_in_a_bucket_done_twice_stays_the_first_ones(rows: str) -> None:
    from tpuctl.infer.parts import cut

    first = Job(job(rows, OUTPUT))
    second = Job(job(rows, OUTPUT), lambda batch, mask: {"y": batch["x"] * 3})
    part = cut(first.work.rows, part_rows=first.work.part_rows)[0]
    assert first.replica.do(part).record == second.replica.do(part).record


def test_input_in_a_bucket_that_was_written_anew_is_refused(rows: str, tmp_path: Path) -> None:
    next(Job(job(rows, OUTPUT)).parts())
    upload(numbers(tmp_path / "other", 11, 14), rows)
    with pytest.raises(OutputError, match="has changed"):
        Job(job(rows, OUTPUT))
