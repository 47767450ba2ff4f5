"""Columns come out as they went in, whatever their type, and files that differ are brought together or refused."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.infer.inputs import Job, doubled, job, numbers, read, write
from tpuctl.errors import DataError

X = pa.array([1.0, 2.0, 3.0], pa.float32())
COLUMNS = {
    "text": pa.array(["a", None, "ü"]),
    "large_text": pa.array(["a", None, "b"], pa.large_string()),
    "bytes": pa.array([b"\x00", None, b"\xff"]),
    "large_bytes": pa.array([b"a", b"", None], pa.large_binary()),
    "fixed_bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "nothing": pa.nulls(3),
    "flag": pa.array([True, None, False]),
    "small": pa.array([1, None, 3], pa.uint8()),
    "half": pa.array(np.array([1.5, 2.5, -1], np.float16)),
    "time": pa.array([1, None, 3], pa.timestamp("us", tz="Europe/Berlin")),
    "nanoseconds": pa.array([1, None, 3], pa.timestamp("ns")),
    "day": pa.array([dt.date(2026, 1, 1), None, dt.date(1, 1, 1)]),
    "clock": pa.array([1, None, 3], pa.time64("us")),
    "duration": pa.array([1, None, 3], pa.duration("ms")),
    "money": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-2.00")]),
    "word": pa.array(["x", None, "x"]).dictionary_encode(),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    "messages": pa.array([[{"role": "user", "content": None}], None, []]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": {"b": [1]}}, None, {"a": None}]),
    "text_view": pa.array(["a", None, "b"], pa.string_view()),
    "bytes_view": pa.array([b"a", None, b"b"], pa.binary_view()),
    "words": pa.array([["x"], None, ["x", "y"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_column_of_any_type_comes_out_as_it_went_in(tmp_path: Path, name) -> None:
    write(tmp_path / "in", {"a.parquet": pa.table({"x": X, name: COLUMNS[name]})}, group_rows=2)
    Job(job(tmp_path / "in", tmp_path / "out", batch_rows=1, inputs=("x",))).run()
    before, after = pq.read_table(tmp_path / "in" / "a.parquet")[name], read(tmp_path / "out")[name]
    assert after.to_pylist() == before.to_pylist() == COLUMNS[name].to_pylist()
    assert str(after.type) == str(before.type)


@pytest.mark.parametrize("name", COLUMNS)
def test_column_of_any_type_survives_a_bad_row_beside_it(tmp_path: Path, name) -> None:
    write(tmp_path / "in", {"a.parquet": pa.table({"x": pa.array([1.0, None, 3.0]), name: COLUMNS[name]})})
    entry = Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",))).run()
    assert (entry["rows"], entry["quarantined"]) == (2, 1)
    before, after = pq.read_table(tmp_path / "in" / "a.parquet")[name], read(tmp_path / "out")[name]
    assert after.to_pylist() == [before[0].as_py(), before[2].as_py()]
    assert str(after.type) == str(before.type)


def test_column_that_must_not_be_null_in_the_input_may_be_null_in_the_output(tmp_path: Path) -> None:
    child = pa.struct([pa.field("role", pa.string(), nullable=False), pa.field("content", pa.string())])
    schema = pa.schema(
        [pa.field("x", pa.float32(), nullable=False), pa.field("messages", pa.list_(child), nullable=False)]
    )
    messages = [[{"role": "user", "content": "hi"}], [], [{"role": "user", "content": None}]]
    write(tmp_path / "in", {"a.parquet": pa.table([X, pa.array(messages, pa.list_(child))], schema=schema)})
    Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",))).run()
    table = read(tmp_path / "out")
    assert table["messages"].to_pylist() == messages
    assert all(field.nullable for field in table.schema)


def test_partition_keys_become_columns_and_a_column_of_the_file_goes_before(tmp_path: Path) -> None:
    files = {
        "date=2026-01-01/lang=en/a.parquet": pa.table({"x": X, "lang": pa.array(["en"] * 3, pa.large_string())}),
        "date=2026-01-02/lang=d%20e/b.parquet": pa.table({"x": X, "lang": ["d e"] * 3}),
        "date=__HIVE_DEFAULT_PARTITION__/lang=en/c.parquet": pa.table({"x": X, "lang": ["en"] * 3}),
    }
    write(tmp_path / "in", files)
    Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",), columns=("date", "lang"))).run()
    table = read(tmp_path / "out")
    assert table.schema.names == ["row_file", "row_group", "row_index", "date", "lang", "y"]
    assert table["date"].to_pylist() == ["2026-01-01"] * 3 + ["2026-01-02"] * 3 + [None] * 3
    assert table["lang"].to_pylist() == ["en"] * 3 + ["d e"] * 3 + ["en"] * 3


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (pa.string(), pa.null(), pa.string()),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 5), pa.large_list(pa.float32())),
        (pa.struct([("a", pa.null())]), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.large_string()),
    ],
)
def test_files_with_types_of_one_family_share_a_column_without_loss(tmp_path: Path, one, other, kind) -> None:
    values = {name: pa.nulls(3, type_) for name, type_ in (("a", one), ("b", other))}
    write(tmp_path / "in", {f"{name}.parquet": pa.table({"x": X, "c": values[name]}) for name in values})
    Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",))).run()
    table = read(tmp_path / "out")
    assert (table.num_rows, table.schema.field("c").type) == (6, kind)


@pytest.mark.parametrize(
    ("one", "other"), [(pa.int32(), pa.float32()), (pa.string(), pa.int64()), (pa.int32(), pa.uint32())]
)
def test_files_with_types_that_do_not_fit_are_refused_before_any_work(tmp_path: Path, one, other) -> None:
    files = {f"{name}.parquet": pa.table({"x": X, "c": pa.nulls(3, kind)}) for name, kind in (("a", one), ("b", other))}
    write(tmp_path / "in", files)
    with pytest.raises(DataError, match=rf"'c' is {one} in .*a\.parquet, but {other} in .*b\.parquet"):
        Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",)))
    assert not (tmp_path / "out").exists()
    assert Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",), columns=("x",))).run()["rows"] == 6


def test_column_missing_in_one_file_is_refused_with_its_name(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.parquet": pa.table({"x": X, "c": X}), "b.parquet": pa.table({"x": X})})
    with pytest.raises(DataError, match=r"b\.parquet: no column 'c'"):
        Job(job(tmp_path / "in", tmp_path / "out"))


def test_junk_in_the_folder_is_skipped_or_named(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 3)
    for name in ("_SUCCESS", ".f0.parquet.crc", "README.md"):
        (tmp_path / "in" / name).write_text("x")
    Job(job(tmp_path / "in", tmp_path / "out")).run()
    (tmp_path / "in" / "empty.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.parquet can't be read"):
        Job(job(tmp_path / "in", tmp_path / "out2"))
    pd.DataFrame().to_parquet(tmp_path / "in" / "empty.parquet")
    with pytest.raises(DataError, match=r"empty\.parquet"):
        Job(job(tmp_path / "in", tmp_path / "out2"))


def test_columns_that_are_no_numbers_are_carried_and_not_given_to_the_function(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "text": ["a", "b"], "feats": [[1.0, 2.0, 3.0], [1.0, 2.0]]})
    write(tmp_path / "in", {"a.parquet": table})
    seen: list[set[str]] = []

    def function(batch, mask):
        seen.append(set(batch))
        return {"y": batch["id"]}

    Job(job(tmp_path / "in", tmp_path / "out"), function).run()
    assert seen[0] == {"id"}
    assert read(tmp_path / "out")["feats"].to_pylist() == table["feats"].to_pylist()
    with pytest.raises(DataError, match=r"column 'feats' is list<element: double>"):
        Job(job(tmp_path / "in", tmp_path / "out2", inputs=("feats",)), function).run()


def test_inputs_have_the_shapes_and_dtypes_of_their_columns(tmp_path: Path) -> None:
    table = pa.table({name: COLUMNS[name] for name in ("half", "flag", "vector", "text", "nanoseconds")}).slice(0, 1)
    write(tmp_path / "in", {"a.parquet": table})
    seen = {}

    def function(batch, mask):
        seen.update({name: (array.dtype.str, array.shape) for name, array in batch.items()})
        return {"v": batch["vector"].astype(np.float16), "t": batch["text"], "w": batch["nanoseconds"]}

    Job(job(tmp_path / "in", tmp_path / "out", inputs=tuple(table.column_names)), function).run()
    assert seen == {
        "half": ("<f4", (4,)),
        "flag": ("|b1", (4,)),
        "vector": ("<f4", (4, 2)),
        "text": ("|O", (4,)),
        "nanoseconds": ("<M8[ns]", (4,)),
    }
    written = read(tmp_path / "out")
    assert [str(written.schema.field(name).type) for name in "vtw"] == [
        "fixed_size_list<element: float>[2]",
        "string",
        "timestamp[ns]",
    ]
    assert written["v"].to_pylist() == [[1.0, 2.0]]


def test_input_column_that_is_not_carried_is_read_all_the_same(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 5)
    Job(job(tmp_path / "in", tmp_path / "out", inputs=("x",), columns=("id",)), doubled).run()
    assert read(tmp_path / "out").schema.names == ["row_file", "row_group", "row_index", "id", "y"]
