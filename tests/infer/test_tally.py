"""What is told of a job while it runs, with rows of parts that are not done yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infer.inputs import Job, doubled, job, numbers
from tpuctl.errors import DataError
from tpuctl.infer.output import Record
from tpuctl.infer.parts import cut
from tpuctl.infer.replica import Done
from tpuctl.infer.tally import Tally, most_quarantined


def done(index: int, *, rows: int = 10, bad: int = 0) -> Done:
    record = Record(index=index, file="f", rows=rows - bad, quarantined=bad, bytes=1, sha256="")
    return Done(record=record, tokens=100, reason="why" if bad else None, seconds=1.0, busy_seconds=1.0)


def test_progress_counts_rows_of_parts_that_are_under_way() -> None:
    tally = Tally(total=100, most_bad=0, started=10.0)
    tally.found(done(0).record)
    tally.done(done(1), host=1)
    told = tally.progress(12.0, underway={0: 4, 1: 6})
    assert (told["done"], told["rows_per_second"], told["tokens_per_second"]) == (30, 10.0, 50.0)
    assert told["eta_seconds"] == 7.0
    assert told["host_rows"] == {"0": 4, "1": 16}


def test_part_that_is_done_twice_counts_once() -> None:
    tally = Tally(total=20, most_bad=0, started=0.0)
    tally.done(done(1), host=0)
    tally.done(done(1), host=1)
    assert (tally.rows, tally.fresh_rows, tally.host_rows) == (10, 10, {0: 10})


@pytest.mark.parametrize(("rule", "rows", "most"), [("7", 1000, 7), ("1%", 1000, 10), ("0.1%", 10, 1), ("0%", 10, 0)])
def test_most_quarantined_is_a_count_or_a_share(rule: str, rows: int, most: int) -> None:
    assert most_quarantined(rule, rows=rows) == most


def test_one_bad_row_too_many_ends_the_job_with_its_reason() -> None:
    tally = Tally(total=20, most_bad=1, started=0.0)
    tally.done(done(0, bad=1), host=0)
    tally.check()
    tally.done(done(1, bad=1), host=0)
    with pytest.raises(DataError, match="2 of 20 rows are bad, more than the 1 allowed; one of them: why"):
        tally.check()


def test_replica_knows_how_far_it_is_within_a_part(tmp_path: Path) -> None:
    numbers(tmp_path / "in", 16)
    seen: list[int] = []

    def function(batch: Any, mask: Any) -> dict[str, Any]:
        seen.append(one.replica.underway)
        return doubled(batch, mask)

    one = Job(job(tmp_path / "in", tmp_path / "out", rows_per_part=16, batch_rows=4), function)
    (part,) = cut(16, part_rows=16)
    one.replica.do(part)
    assert seen == [0, 4, 8, 12]
    assert one.replica.underway == 0
