from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.parquet_folders import assert_equal, stream_over, take, take_all, words, write
from tpuctl.errors import DataError
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.feed import LocalFeed, ragged_decision, valid_rows
from tpuctl.train.data.packing import start_cursor
from tpuctl.train.data.prefetch import Prefetched
from tpuctl.train.data.replay import Replay
from tpuctl.train.data.stream import Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    write(tmp_path / "a.parquet", words(np.random.default_rng(0), 30))
    return stream_over(tmp_path)


def finite(stream: Stream) -> Stream:
    return stream_over(Path(stream.corpus.uri), epochs=1)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_local_feed_gives_the_same_batches_however_far_it_works_ahead(stream: Stream, prefetch: int) -> None:
    batches = LocalFeed(stream, held_out=None, rows=range(4), prefetch=prefetch).train(start_cursor(4))
    for expected in take(stream, 10):
        assert_equal(next(batches), expected)
    batches.close()


def test_local_feed_evaluates_the_same_batches_each_time(stream: Stream) -> None:
    feed = LocalFeed(stream, held_out=finite(stream), rows=range(4))
    expected = take_all(finite(stream))
    for count in (2, len(expected), 1, len(expected) + 3):
        batches = feed.evaluate()
        found = [next(batches) for _ in range(count)]
        for one, other in zip(found, expected, strict=False):
            assert_equal(one, other)
        assert not any(batch.loss_mask.any() for batch in found[len(expected) :])


def test_local_feed_without_held_out_text_names_the_key_to_set(stream: Stream) -> None:
    with pytest.raises(DataError) as caught:
        LocalFeed(stream, held_out=None, rows=range(4)).evaluate()
    assert caught.value.hint == "set data.eval_uri"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_local_feed_raises_the_reader_s_error(stream: Stream, prefetch: int) -> None:
    Path(stream.corpus.files[0].path).unlink()
    batches = LocalFeed(stream, held_out=None, rows=range(4), prefetch=prefetch).train(start_cursor(4))
    with pytest.raises(DataError, match=r"a\.parquet"):
        next(batches)


def test_local_feed_tells_of_skipped_rows_when_their_number_doubles(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.parquet", ["text", ""])
    take(stream_over(tmp_path, lanes=1, sequence_length=5), 16)
    told = [int(record.args[1]) for record in caplog.records if "without text" in record.message]  # type: ignore[index,arg-type]
    assert told[:3] == [1, 2, 4]


def test_replay_reads_each_batch_once(stream: Stream) -> None:
    reads: list[np.ndarray] = []

    def read(cursor: np.ndarray) -> Generator[HostBatch]:
        reads.append(cursor)
        yield from take(stream, 5, cursor=cursor)

    replay = Replay(read, rows=4)
    expected = take(stream, 5)
    for _ in range(3):
        for found, other in zip([b for b, _ in zip(replay.batches(), range(3), strict=False)], expected, strict=False):
            assert_equal(found, other)
    assert len(reads) == 1


def test_replay_over_its_budget_reads_on_from_the_last_kept_batch(stream: Stream) -> None:
    expected = take(stream, 6)
    one = sum(getattr(expected[0], name).nbytes for name in HostBatch.__slots__)
    batches = LocalFeed(stream, held_out=None, rows=range(4), prefetch=0)
    replay = Replay(batches.train, rows=4, kept_bytes=2 * one)
    for _ in range(2):
        for found, other in zip(replay.batches(), expected, strict=False):
            assert_equal(found, other)


def test_prefetched_works_ahead_before_it_is_asked_and_no_further_than_told() -> None:
    reached = threading.Semaphore(0)
    made: list[int] = []

    def items() -> Generator[int]:
        for number in range(100):
            made.append(number)
            yield number
            reached.release()

    ahead = Prefetched(items(), depth=3)
    for _ in range(2):
        assert reached.acquire(timeout=10)
    ahead.close()
    assert made[:3] == [0, 1, 2]
    assert len(made) <= 3


def test_prefetched_passes_items_then_the_error_then_nothing() -> None:
    def items() -> Generator[int]:
        yield 1
        raise DataError("a.parquet is broken")

    ahead = Prefetched(items(), depth=3)
    assert next(ahead) == 1
    with pytest.raises(DataError, match=r"a\.parquet is broken"):
        next(ahead)
    assert list(ahead) == []


def test_prefetched_closed_early_closes_what_it_reads() -> None:
    closed = []

    def items() -> Generator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    ahead = Prefetched(items(), depth=2)
    next(ahead)
    ahead.close()
    ahead.close()
    assert closed == [True]


def test_valid_rows_counts_rows_with_any_target(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["one", "two", "three"])
    first, second = take(stream_over(tmp_path, epochs=1), 2)
    assert (valid_rows(first), valid_rows(second)) == (3, 0)


@pytest.mark.parametrize(
    ("valid", "rule", "decision"),
    [
        (4, "drop", "train"),
        (4, "pad", "train"),
        (4, "raise", "train"),
        (3, "drop", "stop"),
        (3, "pad", "train"),
        (0, "drop", "stop"),
        (0, "pad", "stop"),
        (0, "raise", "stop"),
    ],
)
def test_ragged_decision_follows_the_rule_and_never_trains_on_padding(valid: int, rule: str, decision: str) -> None:
    assert ragged_decision(valid, global_batch=4, rule=rule) == decision  # type: ignore[arg-type]


def test_ragged_decision_to_raise_says_how_many_rows_there_were() -> None:
    with pytest.raises(DataError, match="3 of 4 rows"):
        ragged_decision(3, global_batch=4, rule="raise")
