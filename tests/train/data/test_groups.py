from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.train.data.parquet_folders import stream_over, write
from tpuctl.errors import DataError
from tpuctl.train.data import groups
from tpuctl.train.data.groups import GroupBudget, GroupCache

TEXTS = [f"text number {number} " + "é" * (number % 50) for number in range(300)]


def cache_over(folder: Path, *, memory_bytes: int, disk_bytes: int = 1 << 30, lanes: int = 1) -> GroupCache:
    budget = GroupBudget(memory_bytes=memory_bytes, disk_bytes=disk_bytes)
    return GroupCache(stream_over(folder).corpus, lanes=lanes, budget=budget)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where large groups are decoded to."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(groups.tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_group_cache_gives_any_row_of_a_group_decoded_once(tmp_path: Path, scratch: Path, memory_bytes: int) -> None:
    write(tmp_path / "data" / "a.parquet", TEXTS, rows_per_group=300)
    cache = cache_over(tmp_path / "data", memory_bytes=memory_bytes)
    for row in (299, 0, 150, 149, 151, 0):
        assert cache.text(0, file=0, group=0, row=row) == TEXTS[row]
    assert cache.decoded_groups == 1


def test_group_cache_leaves_no_file_behind_even_while_it_reads(tmp_path: Path, scratch: Path) -> None:
    write(tmp_path / "data" / "a.parquet", TEXTS, rows_per_group=300)
    cache = cache_over(tmp_path / "data", memory_bytes=0)
    assert cache.text(0, file=0, group=0, row=7) == TEXTS[7]
    assert list(scratch.iterdir()) == []


def test_group_cache_keeps_what_its_lanes_stand_in_whatever_the_budget(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", TEXTS, rows_per_group=100)
    cache = cache_over(tmp_path, memory_bytes=0, disk_bytes=0, lanes=2)
    for row in range(100):
        assert cache.text(0, file=0, group=0, row=row) == TEXTS[row]
        assert cache.text(1, file=0, group=2, row=row) == TEXTS[200 + row]
    assert cache.decoded_groups == 2


def test_group_cache_lets_go_of_what_is_over_budget(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", TEXTS, rows_per_group=100)
    cache = cache_over(tmp_path, memory_bytes=0, disk_bytes=0)
    for group in (0, 1, 0, 1):
        cache.text(0, file=0, group=group, row=0)
    assert cache.decoded_groups == 4


def test_group_cache_without_disk_says_what_to_do(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data" / "a.parquet", TEXTS, rows_per_group=300)
    monkeypatch.setattr(os.path, "getsize", _no_space)
    with pytest.raises(DataError, match="no room to decode a large row group") as caught:
        cache_over(tmp_path / "data", memory_bytes=0).text(0, file=0, group=0, row=0)
    assert "TMPDIR" in (caught.value.hint or "")
    assert list(scratch.iterdir()) == []


def test_group_cache_of_a_file_that_vanished_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", TEXTS)
    cache = cache_over(tmp_path, memory_bytes=1 << 20)
    path.unlink()
    with pytest.raises(DataError, match=r"a\.parquet can't be read as parquet"):
        cache.text(0, file=0, group=0, row=0)


def _no_space(path: str) -> int:
    raise OSError(28, "No space left on device")
