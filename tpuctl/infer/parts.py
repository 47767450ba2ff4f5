"""The plan of parts: which rows stand in which output file. A pure function of the input's listing."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.errors import DataError
from tpuctl.infer.rows import Rows
from tpuctl.plan.infer_schema import RaggedEnd

# A part is held in memory, as rows and as bytes, a few of them at a time.
_PART_BYTES = 64 << 20
_PARTS_PER_REPLICA = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rows ``start`` to ``start + rows`` of the input, counted over all its files."""

    index: int
    start: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Consecutive rows of one row group."""

    file: int
    group: int
    start: int
    rows: int


def part_rows(rows: Rows, *, most: int, batch_rows: int, replicas: int) -> int:
    """Rows of a part: whole batches, at most ``most``, fewer where rows are large or replicas would be left idle."""
    by_size = int(_PART_BYTES / max(1.0, rows.largest_row_bytes))
    by_share = -(-rows.num_rows // (_PARTS_PER_REPLICA * replicas))
    return max(1, min(most, by_size, max(by_share, batch_rows)) // batch_rows) * batch_rows


def cut(num_rows: int, *, part_rows: int) -> list[Part]:
    """All parts, each of ``part_rows`` rows but the last. No rows make one empty part, so that there is a schema."""
    starts = range(0, num_rows, part_rows) if num_rows else [0]
    return [Part(index=i, start=start, rows=min(part_rows, num_rows - start)) for i, start in enumerate(starts)]


def kept_rows(num_rows: int, *, batch_rows: int, ragged: RaggedEnd) -> int:
    """How many rows are worked on, by the rule for the last ones that don't fill a batch.

    Raises:
        DataError: there are such rows and the rule is to raise.
    """
    over = num_rows % batch_rows
    if ragged == "raise" and over:
        raise DataError(
            f"{num_rows} rows do not divide into batches of {batch_rows}: {over} are over",
            hint='set task.ragged to "pad" or "drop"',
        )
    return num_rows - over if ragged == "drop" else num_rows


def spans(rows: Rows, part: Part) -> Iterator[Span]:
    """Where the rows of a part are found, in order."""
    at, end = part.start, part.start + part.rows
    place = bisect.bisect_right(rows.group_starts, at) - 1
    while at < end:
        first, after = rows.group_starts[place], rows.group_starts[place + 1]
        until = min(end, after)
        if until > at:
            file, group = rows.groups[place]
            yield Span(file=file, group=group, start=at - first, rows=until - at)
            at = until
        place += 1
