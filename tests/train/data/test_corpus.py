"""Which files are the dataset, and what is refused, by name, before a step is taken."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.train.data.parquet_folders import stream_over, take_all, write, write_table
from tpuctl.errors import DataError, StorageError
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import iter_texts, open_corpus

STRINGS = pa.array(["one", "two"])


def texts_of(uri: Path | str, column: str = "text") -> list[str]:
    return list(iter_texts(open_corpus(str(uri), columns=Columns.text(column))))


def error_of(uri: Path | str, column: str = "text") -> DataError:
    with pytest.raises(DataError) as caught:
        open_corpus(str(uri), columns=Columns.text(column))
    return caught.value


def test_open_corpus_takes_a_file_a_folder_and_a_glob(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["a"])
    write(tmp_path / "deep" / "b.parquet", ["b"])
    assert texts_of(tmp_path / "a.parquet") == ["a"]
    assert texts_of(tmp_path) == texts_of(f"{tmp_path}/") == texts_of(f"file://{tmp_path}") == ["a", "b"]
    assert texts_of(tmp_path / "*.parquet") == ["a"]
    assert texts_of(tmp_path / "**" / "*.parquet") == ["a", "b"]


def test_open_corpus_takes_a_path_with_special_characters_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    write(folder / "a+b[1]%3A.parquet", ["exact"])
    write(folder / "a+b1.parquet", ["other"])
    assert texts_of(folder / "a+b[1]%3A.parquet") == ["exact"]
    assert sorted(texts_of(folder / "*.parquet")) == ["exact", "other"]


def test_open_corpus_leaves_out_what_writers_leave_behind(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["good"])
    for junk in ("_SUCCESS", ".a.parquet.crc", "a.parquet.crc", "README.md", "_metadata.parquet", ".hidden.parquet"):
        (tmp_path / junk).write_bytes(b"junk")
    write(tmp_path / "_temporary" / "part.parquet", ["unfinished"])
    assert texts_of(tmp_path) == ["good"]


def test_open_corpus_reads_a_hive_folder_whose_key_is_in_the_file_too(tmp_path: Path) -> None:
    for lang in ("en", "de"):
        write_table(
            tmp_path / f"lang={lang}" / "part.parquet",
            {"text": pa.array([lang]), "lang": pa.array([lang], pa.large_string())},
        )
    assert texts_of(tmp_path) == ["de", "en"]


def test_open_corpus_of_a_glob_takes_folders_whole_and_files_once(tmp_path: Path) -> None:
    for key in ("lang=de", "lang=en", "other"):
        write(tmp_path / key / "deep" / "a.parquet", [key])
    assert texts_of(tmp_path / "lang=*") == ["lang=de", "lang=en"]
    assert texts_of(f"{tmp_path}/lang=*/") == ["lang=de", "lang=en"]
    assert texts_of(tmp_path / "**") == ["lang=de", "lang=en", "other"]


def test_open_corpus_of_a_folder_that_can_t_be_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", ["good"])
    monkeypatch.setattr(os, "scandir", _denied)
    with pytest.raises(StorageError, match=r"can't be listed: Permission denied"):
        open_corpus(str(tmp_path), columns=Columns.text("text"))


def test_open_corpus_of_a_glob_that_meets_another_kind_of_file_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["good"])
    (tmp_path / "README.md").write_text("read me")
    assert "README.md can't be read as parquet" in error_of(tmp_path / "*").message


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing of the kind"])
def test_open_corpus_with_a_broken_file_names_it(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.parquet", ["good"])
    (tmp_path / "broken.parquet").write_bytes(content)
    assert "broken.parquet can't be read as parquet" in error_of(tmp_path).message


def test_open_corpus_with_a_truncated_file_names_it(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", ["good"] * 100)
    whole.write_bytes(whole.read_bytes()[:-20])
    assert "a.parquet can't be read as parquet" in error_of(tmp_path).message


def test_open_corpus_with_a_file_without_columns_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["good"])
    write_table(tmp_path / "empty.parquet", {})
    assert "empty.parquet: no column 'text'; columns: none" in error_of(tmp_path).message


def test_open_corpus_without_files_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no data")
    assert f"no parquet file in the folder {tmp_path}" in error_of(tmp_path).message
    assert "no file fits the pattern" in error_of(tmp_path / "*.parquet").message
    assert "no such file or folder" in error_of(tmp_path / "missing").message


def test_open_corpus_without_the_column_lists_those_there_are(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"content": STRINGS, "id": pa.array([1, 2])})
    error = error_of(tmp_path)
    assert "a.parquet: no column 'text'; columns: content (string), id (int64)" in error.message
    assert error.hint == "set data.text_column"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([b"a", b"b"]), "binary"),
        (pa.array([1, 2]), "int64"),
        (pa.array([["a"], ["b"]]), "list<element: string>"),
        (pa.array([{"role": "a"}, {"role": "b"}]), "struct<role: string>"),
        (pa.array([b"a", b"b"]).dictionary_encode(), "dictionary<values=binary"),
    ],
)
def test_open_corpus_of_another_type_names_file_column_and_type(tmp_path: Path, values: pa.Array, kind: str) -> None:
    write(tmp_path / "a.parquet", ["good"])
    write_table(tmp_path / "b.parquet", {"text": values})
    error = error_of(tmp_path)
    assert f"b.parquet: column 'text' is {kind}" in error.message
    assert "expected string" in error.message


@pytest.mark.parametrize(
    "values",
    [
        STRINGS,
        STRINGS.cast(pa.large_string()),
        STRINGS.cast(pa.string_view()),
        STRINGS.dictionary_encode(),
        STRINGS.cast(pa.large_string()).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_open_corpus_reads_strings_of_every_layout_side_by_side(tmp_path: Path, values: pa.Array) -> None:
    write(tmp_path / "a.parquet", ["plain"])
    write_table(tmp_path / "b.parquet", {"text": values})
    assert texts_of(tmp_path) == ["plain", "one", "two"]
    stream = stream_over(tmp_path, epochs=1)
    assert sum(batch.num_bytes.sum() for batch in take_all(stream)) == len("plainonetwo")


def test_open_corpus_with_an_all_null_file_counts_its_rows_as_null(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["a", None])
    write_table(tmp_path / "b.parquet", {"text": pa.nulls(3)})
    corpus = open_corpus(str(tmp_path), columns=Columns.text("text"))
    assert (corpus.num_rows, corpus.null_rows, list(iter_texts(corpus))) == (5, 4, ["a"])


def test_open_corpus_reads_only_the_text_column(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"text": STRINGS, "x": pa.array([1, 2], pa.int32())})
    write_table(tmp_path / "b.parquet", {"x": pa.array([1.0, 2.0], pa.float32()), "text": STRINGS})
    assert texts_of(tmp_path) == ["one", "two"] * 2


def test_open_corpus_finds_its_column_behind_nested_ones(tmp_path: Path) -> None:
    nested = pa.array([{"a": 1, "b": [1]}, {"a": 2, "b": []}])
    write_table(tmp_path / "a.parquet", {"meta": nested, "text": STRINGS})
    corpus = open_corpus(str(tmp_path), columns=Columns.text("text"))
    assert list(iter_texts(corpus)) == ["one", "two"]
    assert 0 < corpus.text_bytes < 200


def test_open_corpus_takes_a_column_name_with_a_dot(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"meta.text": STRINGS, "meta": pa.array([1, 2])})
    assert texts_of(tmp_path, "meta.text") == ["one", "two"]


@pytest.mark.parametrize("texts", [[None, "", None], []])
def test_open_corpus_without_any_text_is_refused(tmp_path: Path, texts: list[str | None]) -> None:
    write(tmp_path / "a.parquet", texts)
    assert "null or empty in all of them" in error_of(tmp_path).message


def test_open_corpus_of_bytes_that_are_no_utf8_names_file_and_column(tmp_path: Path) -> None:
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff\xfe"]).buffers()[1:]])
    write_table(tmp_path / "a.parquet", {"text": invalid})
    assert "a.parquet: column 'text' holds bytes that are not UTF-8" in error_of(tmp_path).message


def test_open_corpus_of_an_unknown_scheme_is_refused_clearly() -> None:
    with pytest.raises(StorageError, match=r"s3://bucket/data: datasets in s3:// can't be read"):
        open_corpus("s3://bucket/data", columns=Columns.text("text"))


def test_open_corpus_of_many_small_files_reads_them_all_and_says_how_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(500):
        write(tmp_path / f"{number:04}.parquet", [f"{number}"])
    corpus = open_corpus(str(tmp_path), columns=Columns.text("text"))
    assert corpus.num_rows == 500
    assert "reading the footers of 500 files" in caplog.text


def test_open_corpus_fingerprint_tells_other_rows_and_other_columns(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", {"text": STRINGS, "body": STRINGS})
    prints = Counter(
        [open_corpus(str(path), columns=Columns.text(column)).fingerprint for column in ("text", "body", "text")]
    )
    assert sorted(prints.values()) == [1, 2]
    write_table(tmp_path / "a.parquet", {"text": pa.array(["one", "two", "three"])})
    assert open_corpus(str(path), columns=Columns.text("text")).fingerprint not in prints


def _denied(path: str) -> None:
    raise PermissionError(13, "Permission denied", path)
