"""Arithmetic on boxes: which part of a tensor is wanted, and in which runs of bytes it lies in a file.

A box is a (start, stop) pair for each dimension of a row-major array. Pure numbers; imports no jax.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

type Box = tuple[tuple[int, int], ...]


def full(shape: Sequence[int]) -> Box:
    """The box that is the whole array."""
    return tuple((0, size) for size in shape)


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """The box of an index of slices, as JAX's shardings give them."""
    sides = zip(index, shape, strict=True)
    return tuple((part.start or 0, size if part.stop is None else part.stop) for part, size in sides)


def extents(box: Box) -> tuple[int, ...]:
    """Its size along each dimension."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """The number of its elements."""
    return math.prod(extents(box))


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box around all of them."""
    return tuple((min(start for start, _ in side), max(stop for _, stop in side)) for side in zip(*boxes, strict=True))


def merged(boxes: Sequence[Box], *, gap: int) -> list[Box]:
    """Fewer boxes that cover the same, and of what lies between them no more than ``gap`` elements for each merge."""
    found = sorted(set(boxes))
    at = 0
    while at + 1 < len(found):
        both = hull(found[at : at + 2])
        if volume(both) <= volume(found[at]) + volume(found[at + 1]) + gap:
            found[at : at + 2] = [both]
            at = 0  # a row of boxes that became one may now fit the row before it
        else:
            at += 1
    return found


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes have in common, None if nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def slices(box: Box, *, within: Box) -> tuple[slice, ...]:
    """The index of ``box`` in an array that holds ``within``."""
    return tuple(slice(start - origin, stop - origin) for (start, stop), (origin, _) in zip(box, within, strict=True))


def widened(box: Box, shape: Sequence[int], *, gap: int) -> Box:
    """``box`` made wider wherever the elements between two of its runs are no more than ``gap``.

    One long read costs less than many short ones, by far so where each is a request.
    """
    wide = list(box)
    for at in reversed(range(1, len(shape))):
        inner = math.prod(shape[at + 1 :])
        skipped = (shape[at] - (wide[at][1] - wide[at][0])) * inner
        repeated = any(stop - start > 1 for start, stop in wide[:at])
        if repeated and skipped <= gap:
            wide[at] = (0, shape[at])
    return tuple(wide)


def runs(box: Box, shape: Sequence[int], *, limit: int) -> Iterator[Box]:
    """``box`` in parts that each lie in one run of a row-major array, of at most ``limit`` elements where possible."""
    sizes = extents(box)
    at = next((i for i, size in enumerate(sizes) if size > 1), len(shape))
    if at == len(shape):
        yield box
        return
    inner = math.prod(sizes[at + 1 :])
    in_one_run = sizes[at + 1 :] == tuple(shape[at + 1 :])
    step = max(1, limit // max(1, inner)) if in_one_run else 1
    start, stop = box[at]
    for first in range(start, stop, step):
        part = (*box[:at], (first, min(first + step, stop)), *box[at + 1 :])
        if in_one_run and volume(part) <= limit:
            yield part
        else:
            yield from runs(part, shape, limit=limit)


def offset(box: Box, shape: Sequence[int]) -> int:
    """Elements before the first of ``box`` in a row-major array."""
    total = 0
    for (start, _), size in zip(box, shape, strict=True):
        total = total * size + start
    return total
