from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.train.data.parquet_folders import stream_over, write
from tpuctl.train.data.order import CHUNKS_PER_LANE, ChunkOrder, permutation


def order_over(folder: Path, *, lanes: int = 4, shuffle: bool = True) -> ChunkOrder:
    return ChunkOrder(stream_over(folder).corpus, lanes=lanes, seed=7, shuffle=shuffle)


def test_permutation_is_written_in_stone() -> None:
    """A resumed run must find the order it left: these numbers may change only with the cursor's meaning."""
    assert permutation(8, 7, 0).tolist() == [2, 1, 7, 3, 0, 6, 4, 5]
    assert permutation(8, 7, 1).tolist() == [1, 3, 0, 7, 2, 6, 5, 4]


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_permutation_holds_every_number_once(size: int) -> None:
    assert sorted(permutation(size, 3).tolist()) == list(range(size))


def test_permutation_takes_numbers_of_any_integer_type() -> None:
    assert permutation(50, np.int64(7), np.int32(1)).tolist() == permutation(50, 7, 1).tolist()


def test_permutation_moves_each_number_everywhere() -> None:
    places = np.array([permutation(8, key) for key in range(4000)])
    counts = np.apply_along_axis(np.bincount, 0, places, minlength=8)
    assert abs(counts - 500).max() < 100  # 500 expected, standard deviation 21


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("rows_per_group", [1, 3, 100])
def test_chunk_order_epoch_covers_every_row_once(tmp_path: Path, shuffle: bool, rows_per_group: int) -> None:
    for file in range(3):
        write(tmp_path / f"{file}.parquet", ["x"] * (7 + file), rows_per_group=rows_per_group)
    order = order_over(tmp_path, shuffle=shuffle)
    for epoch in range(2):
        seen = []
        for position in range(epoch * order.num_chunks, (epoch + 1) * order.num_chunks):
            chunk = order.chunk(position)
            assert order.epoch(position) == epoch
            turns = [order.row(position, chunk, turn) for turn in range(chunk.rows)]
            seen += [(chunk.file, chunk.group, chunk.start + row) for row in turns]
        assert len(set(seen)) == len(seen) == 7 + 8 + 9


def test_chunk_order_cuts_a_small_corpus_into_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x"] * 10, rows_per_group=10)
    assert order_over(tmp_path).num_chunks == 10


def test_chunk_order_cuts_one_large_group_into_many_chunks(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x"] * 10_000, rows_per_group=10_000)
    order = order_over(tmp_path)
    sizes = {order.chunk(position).rows for position in range(order.num_chunks)}
    assert order.num_chunks == 4 * CHUNKS_PER_LANE
    assert max(sizes) - min(sizes) <= 1


def test_chunk_order_leaves_groups_whole_where_there_are_many(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x"] * 1000, rows_per_group=10)
    assert order_over(tmp_path, lanes=2).num_chunks == 100
