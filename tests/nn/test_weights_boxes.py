from __future__ import annotations

import numpy as np
import pytest

from tpuctl.nn.weights_boxes import Box, extents, full, merged, offset, overlap, runs, slices, volume, widened


def random_box(random: np.random.Generator, shape: tuple[int, ...]) -> Box:
    sides = [sorted(random.choice(size + 1, size=2, replace=False).tolist()) for size in shape]
    return tuple((start, stop) for start, stop in sides)


@pytest.mark.parametrize("limit", [1, 7, 30, 10_000])
def test_runs_cover_a_box_once_and_each_lies_in_one_piece_of_memory(limit: int) -> None:
    random = np.random.default_rng(limit)
    for _ in range(100):
        shape = tuple(random.integers(1, 7, size=random.integers(1, 5)).tolist())
        box = random_box(random, shape)
        array, seen = np.arange(np.prod(shape)).reshape(shape), np.zeros(shape, int)
        for part in runs(box, shape, limit=limit):
            index = slices(part, within=full(shape))
            start = offset(part, shape)
            assert array[index].ravel().tolist() == list(range(start, start + volume(part)))
            assert volume(part) <= limit
            seen[index] += 1
        wanted = np.zeros(shape, int)
        wanted[slices(box, within=full(shape))] = 1
        assert (seen == wanted).all()


def test_widened_closes_small_gaps_and_leaves_large_ones() -> None:
    assert widened(((0, 4), (2, 6)), (4, 8), gap=4) == ((0, 4), (0, 8))
    assert widened(((0, 4), (2, 6)), (4, 8), gap=3) == ((0, 4), (2, 6))
    assert widened(((1, 2), (2, 6)), (4, 8), gap=100) == ((1, 2), (2, 6)), "a single run has no gaps"


def test_merged_joins_neighbours_in_both_directions_and_keeps_what_lies_apart() -> None:
    corners: list[Box] = [((a, a + 2), (b, b + 2)) for a in (0, 2) for b in (0, 2)]
    assert merged(corners, gap=0) == [((0, 4), (0, 4))]
    apart: list[Box] = [((0, 2),), ((6, 8),), ((2, 3),)]
    assert merged(apart, gap=0) == [((0, 3),), ((6, 8),)]
    assert merged(apart, gap=3) == [((0, 8),)]


def test_overlap_of_boxes_that_only_touch_is_nothing() -> None:
    assert overlap(((0, 2), (0, 2)), ((1, 3), (1, 9))) == ((1, 2), (1, 2))
    assert overlap(((0, 2),), ((2, 3),)) is None
    assert extents(((3, 5), (0, 0))) == (2, 0)
