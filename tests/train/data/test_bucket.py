"""Datasets and tokenizers in a bucket: the same files, rows and fingerprint as on a disk, in few requests."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fakes.gcs_process import GcsService
from tests.train.data.parquet_folders import write
from tpuctl.entrypoints.corpus import PYTHON_STDLIB, dataset_uris
from tpuctl.errors import DataError, StorageError
from tpuctl.listing import list_files
from tpuctl.storage import BucketMissingError, join, open_storage
from tpuctl.storage.arrow import arrow_filesystem
from tpuctl.text import TOKENIZER_FILE
from tpuctl.text.place import TokenizerRef
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import iter_texts, open_corpus
from tpuctl.train.data.stream import prepare_tokenizer

DATA = "gs://tpu-test/data"


def put_folder(gcs: GcsService, folder: Path, base: str = DATA) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            key = join(base, path.relative_to(folder).as_posix()).removeprefix("gs://tpu-test/")
            gcs.buckets.put("tpu-test", key, path.read_bytes(), query={}, metadata={})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parquet files at several depths among what isn't data."""
    for number, name in enumerate(["a.parquet", "lang=de/b.pq", "lang=de/deep/c.parquet", "lang=en/d.PARQUET"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, [f"text {number} {row}" for row in range(3)])
    for name in ("_SUCCESS", ".hidden.parquet", "_temporary/x.parquet", "README", "a.parquet.crc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"nothing")
    return tmp_path


@pytest.mark.parametrize("what", ["", "/lang=*", "/*.parquet", "/**/*.p*q*", "/lang=de/deep/c.parquet", "/**/deep"])
def test_dataset_in_a_bucket_is_that_of_the_folder(gcs: GcsService, folder: Path, what: str) -> None:
    put_folder(gcs, folder)
    here, there = (open_corpus(base + what, columns=Columns.text("text")) for base in (str(folder), DATA))
    assert [file.name for file in there.files] == [file.name for file in here.files]
    assert there.fingerprint == here.fingerprint
    assert list(iter_texts(there)) == list(iter_texts(here))


def test_dataset_with_directory_markers_is_the_same_with_and_without_a_slash(gcs: GcsService, folder: Path) -> None:
    put_folder(gcs, folder)
    for marker in ("data/", "data/lang=de/"):
        gcs.buckets.put("tpu-test", marker, b"placeholder", query={}, metadata={})
    assert list_files(DATA + "/") == list_files(DATA)
    assert len(list_files(DATA)) == 4


def test_object_with_an_odd_name_is_read_exactly_and_not_as_a_pattern(gcs: GcsService, folder: Path) -> None:
    odd = f"{DATA}/my data/a+b[1]%3A.parquet"
    (folder / "my data").mkdir()
    write(folder / "my data" / "a+b[1]%3A.parquet", ["exactly this"])
    write(folder / "my data" / "a+b1%3A.parquet", ["other"])
    put_folder(gcs, folder)
    assert list(iter_texts(open_corpus(odd, columns=Columns.text("text")))) == ["exactly this"]
    assert open_corpus(f"{DATA}/my data/*.parquet", columns=Columns.text("text")).num_rows == 2


def test_missing_folder_missing_bucket_and_missing_right_are_told_apart(gcs: GcsService) -> None:
    with pytest.raises(DataError, match=r"gs://tpu-test/none': no such object, and no parquet file below it"):
        open_corpus("gs://tpu-test/none", columns=Columns.text("text"))
    with pytest.raises(BucketMissingError, match="no-such"):
        open_corpus("gs://no-such/none", columns=Columns.text("text"))
    gcs.fail(op="list", status=403, message="denied: storage.objects.list", times=None)
    with pytest.raises(StorageError, match=r"gs://tpu-test/none: the right storage\.objects\.list is missing"):
        open_corpus("gs://tpu-test/none", columns=Columns.text("text"))


def test_file_that_is_no_parquet_and_one_that_may_not_be_read_are_told_apart(gcs: GcsService, folder: Path) -> None:
    put_folder(gcs, folder)
    gcs.buckets.put("tpu-test", "data/bad.parquet", b"not parquet at all", query={}, metadata={})
    with pytest.raises(DataError, match=r"data/bad\.parquet can't be read as parquet"):
        open_corpus(DATA, columns=Columns.text("text"))
    gcs.fail(op="read", name="data/a.parquet", status=403, message="denied", times=None)
    with pytest.raises(StorageError, match=r"gs://tpu-test/data/a\.parquet.*denied"):
        open_corpus(DATA + "/a.parquet", columns=Columns.text("text"))


@pytest.mark.slow
def test_two_thousand_small_files_are_indexed_side_by_side_and_it_is_said(gcs: GcsService, folder: Path) -> None:
    content = (folder / "a.parquet").read_bytes()
    gcs.buckets.fill("tpu-test", "many/{:05}.parquet", 2000, content)
    gcs.fail(op="stat|read", delay_seconds=0.02, times=None)
    said: list[str] = []
    started = time.monotonic()
    corpus = open_corpus("gs://tpu-test/many", columns=Columns.text("text"), tell=said.append)
    assert corpus.num_rows == 6000
    assert "reading the footers of 2000 files" in said[0]
    assert time.monotonic() - started < 2000 * 2 * 0.02 / 4


def test_reading_goes_on_while_every_seventh_request_fails(gcs: GcsService, folder: Path) -> None:
    put_folder(gcs, folder)
    fault = gcs.fail(every=7, times=3, status=503)
    assert len(list(iter_texts(open_corpus(DATA, columns=Columns.text("text"))))) == 12
    assert fault.hits == 3


def test_tokenizer_of_a_run_in_a_bucket_is_trained_once_and_loaded_anywhere(gcs: GcsService, folder: Path) -> None:
    ref = TokenizerRef(name="bpe:300", directory="gs://tpu-test/run", vocab_size=300)
    prepare_tokenizer(ref, corpus=open_corpus(str(folder), columns=Columns.text("text")))
    before = open_storage(DATA).stat(join(ref.directory, TOKENIZER_FILE))
    prepare_tokenizer(ref, corpus=open_corpus(str(folder), columns=Columns.text("text")))
    assert open_storage(DATA).stat(join(ref.directory, TOKENIZER_FILE)) == before
    tokenizer = ref.load()
    assert 257 < tokenizer.vocab_size <= 300
    for name in ("gs://tpu-test/run", "gs://tpu-test/run/tokenizer.json"):
        other = TokenizerRef(name=name, directory="/nowhere", vocab_size=300).load()
        assert other.vocab_size == tokenizer.vocab_size
    with pytest.raises(DataError, match="no tokenizer at gs://tpu-test/none"):
        TokenizerRef(name="gs://tpu-test/none", directory="/nowhere", vocab_size=300).load()


def test_tokenizer_of_a_run_begun_anew_is_not_that_of_the_old(gcs: GcsService, folder: Path) -> None:
    corpus = open_corpus(str(folder), columns=Columns.text("text"))
    for size in (280, 300):
        ref = TokenizerRef(name=f"bpe:{size}", directory="gs://tpu-test/run", vocab_size=300)
        prepare_tokenizer(ref, corpus=corpus)
        assert ref.load().vocab_size <= size
        gcs.buckets.create("tpu-test")


def test_built_in_text_goes_into_the_bucket_once(gcs: GcsService) -> None:
    uris = dataset_uris(PYTHON_STDLIB, eval_uri=None, directory="gs://tpu-test/run/dataset")
    assert uris.train_uri.startswith("gs://tpu-test/run/dataset/python-stdlib-")
    generation = open_storage(DATA).stat(uris.train_uri).generation
    assert dataset_uris(PYTHON_STDLIB, eval_uri=None, directory="gs://tpu-test/run/dataset") == uris
    assert open_storage(DATA).stat(uris.train_uri).generation == generation
    filesystem, path = arrow_filesystem(str(uris.eval_uri))
    assert pq.read_table(path, filesystem=filesystem).num_rows > 10
