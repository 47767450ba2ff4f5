"""Rows that can't be worked on: apart with their reason, or the end of the job; never the end of a batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.infer.inputs import Job, doubled, job, numbers, read, write
from tpuctl.errors import DataError


def test_null_in_an_input_column_goes_to_quarantine_with_id_and_reason(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.parquet": pa.table({"x": [1.0, None, 3.0], "id": [0, 1, 2]})}, group_rows=2)
    entry = Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",))).run()
    assert (entry["rows"], entry["quarantined"]) == (2, 1)
    assert read(tmp_path / "out")["id"].to_pylist() == [0, 2]
    [file] = (tmp_path / "out" / "_quarantine").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == [
        {"row_file": "a.parquet", "row_group": 0, "row_index": 1, "reason": "column 'x' is null"}
    ]


def test_row_at_which_the_function_raises_is_alone_in_quarantine(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 40)

    def function(batch, mask):
        if {6.0, 17.0} & set(batch["x"][mask]):
            raise ZeroDivisionError("not this one")
        return doubled(batch, mask)

    entry = Job(job(tmp_path / "in", tmp_path / "out"), function).run()
    assert (entry["rows"], entry["quarantined"]) == (38, 2)
    assert read(tmp_path / "out")["y"].to_pylist() == [2.0 * n for n in range(40) if n not in (6, 17)]
    bad = read(tmp_path / "out", pattern="_quarantine/*.parquet")
    assert set(bad["reason"].to_pylist()) == {"ZeroDivisionError: not this one"}


def test_bad_row_with_the_rule_to_fail_names_it(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.parquet": pa.table({"x": [1.0, None]})})
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 1: column 'x' is null"):
        Job(job(tmp_path / "in", tmp_path / "out", bad_rows="fail")).run()


def test_text_that_is_no_utf8_is_a_bad_row_only_where_the_function_wants_it(tmp_path: Path) -> None:
    raw = pa.array([b"fine", b"\xff\xfe", b"too"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    write(tmp_path / "in", {"a.parquet": pa.table({"text": text, "x": [1.0, 2.0, 3.0]})})

    def lengths(batch, mask):
        return {"n": [len(text) for text in batch["text"]]}

    entry = Job(job(tmp_path / "in", tmp_path / "out", inputs=("text",)), lengths).run()
    assert (entry["rows"], entry["quarantined"]) == (2, 1)
    assert "is no UTF-8" in read(tmp_path / "out", pattern="_quarantine/*.parquet")["reason"][0].as_py()
    assert Job(job(tmp_path / "in", tmp_path / "carried", inputs=("x",))).run()["rows"] == 3


def test_part_of_bad_rows_only_has_the_schema_of_the_others(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([None] * 8 + [1.0] * 8, pa.float32())})
    write(tmp_path / "in", {"a.parquet": table})
    Job(job(tmp_path / "in", tmp_path / "out", batch_rows=8)).run()
    schemas = [pq.read_schema(path).remove_metadata() for path in sorted((tmp_path / "out").glob("part-*.parquet"))]
    assert len(schemas) == 2
    assert schemas[0] == schemas[1]


def test_column_of_reasons_that_are_rare_has_one_type_in_all_parts(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 16)

    def function(batch, mask):
        return {"error": ["odd one" if x == 13 else None for x in batch["x"]]}

    Job(job(tmp_path / "in", tmp_path / "out"), function).run()
    kinds = {pq.read_schema(path).field("error").type for path in (tmp_path / "out").glob("part-*.parquet")}
    assert kinds == {pa.string()}
    assert read(tmp_path / "out")["error"].to_pylist().count("odd one") == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda n: {"score": [b"x", 2.0] + [None] * (n - 2)}, r"'score' mixes types: bytes in row 0.*float in row 1"),
        (lambda n: {"score": [1.0]}, "'score' has 1 rows, expected 4"),
        (lambda n: {"score": 1.0}, "'score' has 0 rows, expected 4"),
        (lambda n: [1.0] * n, "returned list, expected a dict"),
        (lambda n: {"x": [1.0] * n}, "'x' has the name of a column of the input"),
    ],
)
def test_function_with_a_wrong_result_ends_the_job_and_names_the_column(tmp_path: Path, result, message) -> None:
    numbers(tmp_path / "in", 4)
    with pytest.raises(DataError, match=message):
        Job(job(tmp_path / "in", tmp_path / "out"), lambda batch, mask: result(len(mask))).run()


def test_function_whose_dtype_changes_between_parts_is_refused_by_name(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 16)

    def function(batch, mask):
        return {"y": batch["id"] if batch["id"][0] < 8 else [str(n) for n in batch["id"]]}

    with pytest.raises(DataError, match="'y' is string, but was int64"):
        Job(
            job(tmp_path / "in", tmp_path / "out"), lambda b, m: function(b, m) if b["id"][0] < 8 else {"y": ["a"] * 4}
        ).run()
