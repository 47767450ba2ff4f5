"""The Ray Data feed on a real Ray node: the same batches as in this process, bounded, and honest when it breaks."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.train.data.parquet_folders import assert_equal, rows_of, stream_over, take, take_all, words, write
from tpuctl.errors import DataError
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.packing import start_cursor
from tpuctl.train.data.stream import Stream

ray = pytest.importorskip("ray", reason="ray is not installed")

from ray.data import DataContext, ReadTask  # noqa: E402
from ray.data.block import BlockMetadata  # noqa: E402
from ray.util.placement_group import placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

from tpuctl.entrypoints import ray_feed  # noqa: E402
from tpuctl.entrypoints.ray_feed import LaneReader, RayFeed  # noqa: E402

pytestmark = pytest.mark.ray

ROWS = range(8)

# Ray keeps as many idle processes as it has CPUs: fewer, and every test would wait for its readers to start.
CPUS = 4


@pytest.fixture(scope="module", autouse=True)
def ray_node() -> Iterator[None]:
    # A short path: Ray puts sockets there, whose names have a limit.
    folder = tempfile.mkdtemp(prefix="rf-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=150 << 20,
        include_dashboard=False,
        _temp_dir=folder,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    rng = np.random.default_rng(0)
    for file in range(3):
        write(tmp_path / f"{file}.parquet", words(rng, 40))
    return stream_over(tmp_path, lanes=len(ROWS))


@pytest.mark.parametrize("readers", [1, 2])
def test_ray_feed_gives_the_batches_of_the_local_feed(stream: Stream, readers: int) -> None:
    batches = RayFeed(stream, held_out=None, rows=ROWS, readers=readers).train(start_cursor(len(ROWS)))
    for expected in take(stream, 40):
        assert_equal(next(batches), expected)
    batches.close()


def test_ray_feed_of_two_hosts_resumes_the_stream_of_one(stream: Stream) -> None:
    unbroken = take(stream, 12)
    cursor = unbroken[5].cursor
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7]):
        batches = RayFeed(stream, held_out=None, rows=rows, readers=1).train(cursor[rows])
        for expected in unbroken[6:]:
            assert_equal(next(batches), rows_of(expected, rows))
        batches.close()


def test_ray_feed_evaluates_the_same_batches_each_time(stream: Stream) -> None:
    held_out = stream_over(Path(stream.corpus.uri), lanes=len(ROWS), epochs=1)
    feed = RayFeed(stream, held_out=held_out, rows=ROWS, readers=1)
    for _ in range(2):
        batches = feed.evaluate()
        for expected in take_all(held_out):
            assert_equal(next(batches), expected)
        assert not next(batches).loss_mask.any()
        batches.close()


def test_ray_feed_works_where_all_cpus_are_taken(stream: Stream) -> None:
    group = placement_group([{"CPU": CPUS}])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    worker = ray.remote(num_cpus=CPUS, scheduling_strategy=strategy)(_first_batch)
    assert_equal(ray.get(worker.remote(stream), timeout=120), take(stream, 1)[0])
    ray.util.remove_placement_group(group)


def test_ray_feed_raises_the_reader_s_own_error(stream: Stream) -> None:
    Path(stream.corpus.files[1].path).write_bytes(b"overwritten")
    batches = RayFeed(stream, held_out=None, rows=ROWS, readers=2).train(start_cursor(len(ROWS)))
    with pytest.raises(DataError) as caught:
        list(islice(batches, 200))
    assert type(caught.value) is DataError
    assert caught.value.message.startswith(f"{stream.corpus.files[1].path} can't be read as parquet")
    assert "name only good ones" in (caught.value.hint or "")
    assert "max_map_retries" not in str(caught.value)


def test_reader_stays_a_bounded_number_of_blocks_ahead_and_ends_when_closed(stream: Stream, tmp_path: Path) -> None:
    log = tmp_path / "blocks.log"
    reader = _LoggedReader(stream, lanes=ROWS, cursor=start_cursor(len(ROWS)))
    reader.log = log
    pieces = ray_feed.pieces(reader)
    for _ in range(reader.steps_per_block):
        next(pieces)
    # The object store holds a hundred times as many; what is made is what was taken, what may lie there, and a few in
    # the hands of the task, the iterator and this test.
    assert not _comes_true(lambda: _lines(log) > 2 * ray_feed._BLOCKS_AHEAD + 6, seconds=4)
    pid = int(log.read_text().split()[0])
    assert "Read_LoggedReader" in _command_line(pid)
    pieces.close()
    assert _comes_true(lambda: "Read_LoggedReader" not in _command_line(pid), seconds=60)


def test_reader_process_loads_no_jax(stream: Stream, tmp_path: Path) -> None:
    reader = _LoggedReader(stream, lanes=ROWS, cursor=start_cursor(len(ROWS)))
    reader.log = tmp_path / "blocks.log"
    pieces = ray_feed.pieces(reader)
    next(pieces)
    pieces.close()
    assert set(reader.log.read_text().split()[1::2]) == {"jax-free"}


@pytest.mark.slow
def test_reader_that_is_killed_is_run_again_and_gives_the_same_rows(stream: Stream, tmp_path: Path) -> None:
    reader = _LoggedReader(stream, lanes=ROWS, cursor=start_cursor(len(ROWS)))
    reader.log = tmp_path / "blocks.log"
    pieces = ray_feed.pieces(reader)
    unbroken = iter(take(stream, 30 * reader.steps_per_block))
    assert_equal(next(pieces).batch, next(unbroken))
    killed = int(reader.log.read_text().split()[0])
    os.kill(killed, signal.SIGKILL)
    for expected in unbroken:
        assert_equal(next(pieces).batch, expected)
    pieces.close()
    assert len(set(reader.log.read_text().split()[::2])) == 2


def test_pieces_leave_the_process_s_data_context_alone(stream: Stream) -> None:
    before = DataContext.get_current().target_max_block_size
    ray_feed.pieces(LaneReader(stream, lanes=ROWS, cursor=start_cursor(len(ROWS)))).close()
    assert DataContext.get_current().target_max_block_size == before


def test_blocks_pass_ray_data_whole(stream: Stream) -> None:
    for sequence_length, lanes in ((16, 8), (4096, 8), (100_000, 3)):
        reader = LaneReader(
            stream_over(Path(stream.corpus.uri), sequence_length=sequence_length, lanes=lanes),
            lanes=range(lanes),
            cursor=start_cursor(lanes),
        )
        (task,) = reader.get_read_tasks(7)
        block = next(iter(task()))
        target = ray_feed._context(reader.block_bytes).target_max_block_size
        assert target < block.nbytes < 1.5 * target
        assert block.num_rows == reader.steps_per_block * lanes


class _LoggedReader(LaneReader):
    """A reader that writes a line for each block it makes."""

    log: Path

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):  # type: ignore[no-untyped-def]
        (task,) = super().get_read_tasks(parallelism)
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(partial(_logged, task, self.log), unknown)]


def _logged(task: ReadTask, log: Path) -> Iterator[pa.Table]:
    for block in task():
        with log.open("a") as file:
            file.write(f"{os.getpid()} {'jax-loaded' if 'jax' in sys.modules else 'jax-free'}\n")
        yield block


def _first_batch(stream: Stream) -> HostBatch:
    batches = RayFeed(stream, held_out=None, rows=ROWS, readers=2).train(start_cursor(len(ROWS)))
    batch = next(batches)
    batches.close()
    return batch


def _comes_true(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""
