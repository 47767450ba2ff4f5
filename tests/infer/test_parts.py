"""The plan of parts and the dealing of them: pure, whole, in order."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tests.infer.inputs import numbers
from tpuctl.infer.dealer import Dealer
from tpuctl.infer.parts import cut, part_rows, spans
from tpuctl.infer.reader import Reader
from tpuctl.infer.rows import open_rows
from tpuctl.plan.infer_schema import InferDataPlan


def rows_in(folder: Path, *counts: int, group_rows: int = 5):
    numbers(folder, *counts, group_rows=group_rows)
    return open_rows(InferDataPlan(uri=str(folder), columns=(), limit=None))


@pytest.mark.parametrize("size", [1, 3, 5, 7, 100])
def test_parts_cover_every_row_once_in_order(tmp_path: Path, size) -> None:
    rows = rows_in(tmp_path, 7, 0, 12, 1, group_rows=4)
    parts = cut(rows.num_rows, part_rows=size)
    found = [
        (rows.files[span.file].name, span.group, span.start + row)
        for part in parts
        for span in spans(rows, part)
        for row in range(span.rows)
    ]
    assert found == sorted(found)
    assert len(set(found)) == len(found) == 20
    assert all(part.rows == size for part in parts[:-1])


@pytest.mark.parametrize(
    ("most", "batch_rows", "replicas", "wanted"),
    [(100, 1, 1, 25), (10, 1, 1, 10), (10, 4, 1, 8), (100, 64, 1, 64), (100, 7, 50, 7), (16_384, 8, 4, 8)],
)
def test_part_rows_are_whole_batches_and_leave_no_replica_idle(
    tmp_path: Path, most, batch_rows, replicas, wanted
) -> None:
    rows = rows_in(tmp_path, 100)
    assert part_rows(rows, most=most, batch_rows=batch_rows, replicas=replicas) == wanted


def test_part_rows_of_large_rows_are_few(tmp_path: Path, monkeypatch) -> None:
    rows = rows_in(tmp_path, 100)
    monkeypatch.setattr("tpuctl.infer.parts._PART_BYTES", 10 * rows.largest_row_bytes)
    assert part_rows(rows, most=100, batch_rows=2, replicas=1) == 10


def test_reader_reads_parts_in_any_order_the_same(tmp_path: Path) -> None:
    rows = rows_in(tmp_path, 23, 4, 40, group_rows=9)
    parts = cut(rows.num_rows, part_rows=6)
    in_order = Reader(rows)
    expected = [in_order.read(part)["id"].to_pylist() for part in parts]
    assert [n for part in expected for n in part] == list(range(67))
    shuffled = random.Random(0).sample(parts, len(parts))
    reader = Reader(rows)
    assert all(reader.read(part)["id"].to_pylist() == expected[part.index] for part in shuffled)


def test_dealer_deals_each_part_once_mostly_in_rows(tmp_path: Path) -> None:
    dealer, hands = Dealer(range(100)), {name: [] for name in "abcd"}
    chance = random.Random(1)
    while dealer.left:
        name = chance.choice("abcd")
        hands[name].append(dealer.deal(name))
    assert sorted(part for hand in hands.values() for part in hand) == list(range(100))
    jumps = sum(other != one + 1 for hand in hands.values() for one, other in pairwise(hand))
    assert jumps < 25
    assert dealer.deal("a") is None


def test_dealer_deals_a_part_again_that_is_given_back() -> None:
    dealer = Dealer([3, 4])
    assert [dealer.deal("a"), dealer.deal("b")] == [3, 4]
    dealer.give_back(3)
    assert (dealer.left, dealer.deal("b"), dealer.deal("a")) == (1, 3, None)
