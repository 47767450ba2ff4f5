from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tpuctl.errors import StorageError
from tpuctl.storage import ABSENT, ChangedError, LocalStorage, NotFoundError, join, open_storage


def test_write_then_read_gives_bytes_and_generation(tmp_path: Path) -> None:
    storage, uri = open_storage(str(tmp_path)), join(str(tmp_path), "deep", "er", "file")
    generation = storage.write(uri, b"one")
    blob = storage.read(uri)
    assert (blob.data, blob.generation) == (b"one", generation)
    assert storage.write(uri, b"two") != generation
    assert storage.exists(uri)
    assert not storage.exists(uri + "x")


def test_read_of_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing: not found"):
        LocalStorage().read(join(str(tmp_path), "nothing"))


def test_read_range_ends_where_the_file_does(tmp_path: Path) -> None:
    storage, uri = open_storage(str(tmp_path)), join(str(tmp_path), "file")
    storage.write(uri, b"0123456789")
    assert [storage.read_range(uri, start, end) for start, end in ((2, 5), (8, 99), (20, 30), (3, 3))] == [
        b"234",
        b"89",
        b"",
        b"",
    ]
    with pytest.raises(NotFoundError):
        storage.read_range(uri + "x", 0, 1)


@pytest.mark.parametrize("size", [0, 3, (1 << 20) + 1])
def test_stat_agrees_with_read_and_write_and_tells_a_change(tmp_path: Path, size: int) -> None:
    storage, uri = open_storage(str(tmp_path)), join(str(tmp_path), "file")
    written = storage.write(uri, bytes(size))
    stat = storage.stat(uri)
    assert (stat.size, stat.generation) == (size, written)
    assert storage.read(uri).generation == written
    storage.write(uri, b"x" * max(1, size))
    assert storage.stat(uri).generation != written
    with pytest.raises(NotFoundError):
        storage.stat(uri + "x")


def test_write_if_absent_of_a_present_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    storage, uri = LocalStorage(), join(str(tmp_path), "file")
    storage.write(uri, b"first", if_generation=ABSENT)
    with pytest.raises(ChangedError):
        storage.write(uri, b"second", if_generation=ABSENT)
    assert storage.read(uri).data == b"first"


def test_write_and_delete_at_an_old_generation_are_refused(tmp_path: Path) -> None:
    storage, uri = LocalStorage(), join(str(tmp_path), "file")
    old = storage.write(uri, b"first")
    new = storage.write(uri, b"second", if_generation=old)
    with pytest.raises(ChangedError):
        storage.write(uri, b"third", if_generation=old)
    with pytest.raises(ChangedError):
        storage.delete(uri, if_generation=old)
    storage.delete(uri, if_generation=new)
    assert not storage.exists(uri)


def test_delete_of_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    LocalStorage().delete(join(str(tmp_path), "no", "such"))


def test_write_if_absent_by_many_at_once_is_won_by_exactly_one(tmp_path: Path) -> None:
    uri, start = join(str(tmp_path), "file"), threading.Barrier(8)

    def attempt(number: int) -> int | None:
        start.wait(10)
        try:
            LocalStorage().write(uri, str(number).encode(), if_generation=ABSENT)
        except ChangedError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(attempt, range(8)) if number is not None]
    assert LocalStorage().read(uri).data == str(winners[0]).encode()
    assert len(winners) == 1


def test_append_adds_and_list_shows_only_real_files(tmp_path: Path) -> None:
    storage, base = LocalStorage(), str(tmp_path)
    storage.append(join(base, "b", "log"), b"one\n")
    storage.append(join(base, "b", "log"), b"two\n")
    storage.write(join(base, "a"), b"", if_generation=ABSENT)
    assert storage.read(join(base, "b", "log")).data == b"one\ntwo\n"
    assert list(storage.list(base)) == [join(base, "a"), join(base, "b", "log")]


def test_open_storage_of_an_unknown_scheme_is_refused_in_one_line() -> None:
    with pytest.raises(StorageError, match="no storage for s3://"):
        open_storage("s3://bucket/run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_write_where_it_is_forbidden_names_the_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        LocalStorage().write(join(str(tmp_path), "file"), b"x")


def test_write_below_a_file_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/below: (Not a directory|File exists)"):
        LocalStorage().write(join(str(tmp_path), "file", "below"), b"x")
