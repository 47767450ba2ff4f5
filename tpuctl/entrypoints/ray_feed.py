"""The training loop's batches through Ray Data: readers on this host's CPUs, while its devices compute.

A reader is a Ray Dataset with one read task that owns some of this host's lanes and never ends; it yields blocks
of whole steps, streamed with back-pressure. docs/design/data.md says why neither ``streaming_split`` nor
``iter_jax_batches`` fits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import batched
from typing import cast

import numpy as np
import pyarrow as pa
import ray
import ray.data
from jaxtyping import Int32
from ray.data import DataContext, Datasource, ReadTask
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.streaming_executor import StreamingExecutor
from ray.data.block import BlockMetadata

from tpuctl.errors import TpuctlError
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.documents import FAULTS
from tpuctl.train.data.feed import Batches, StreamFeed
from tpuctl.train.data.prefetch import Prefetched
from tpuctl.train.data.stream import Piece, Stream, read_stream

# Blocks about this large keep Ray's cost per block small against that of making one.
_BLOCK_BYTES = 1 << 20
_MAX_STEPS_PER_BLOCK = 16
_BLOCKS_AHEAD = 6
_ROUND_SECONDS = 0.02


class RayFeed(StreamFeed):
    """A feed of ``readers`` Ray Datasets side by side, each with a share of the rows.

    To be made in a Ray Train worker, or in any driver.
    """

    def __init__(self, train: Stream, *, held_out: Stream | None, rows: Sequence[int], readers: int) -> None:
        super().__init__(train, held_out=held_out, rows=rows)
        # Ray Data tells of every start and end, and dumps its metrics each second; errors reach us as exceptions.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        self._readers = max(1, min(readers, len(self.rows)))

    def read(self, stream: Stream, cursor: Int32[np.ndarray, "rows 4"]) -> Batches:
        """This host's rows of a stream, from all readers."""
        shares = np.array_split(np.arange(len(self.rows)), self._readers)
        readers = [LaneReader(stream, lanes=[self.rows[i] for i in share], cursor=cursor[share]) for share in shares]
        return Batches([Prefetched(pieces(reader), depth=2) for reader in readers], uri=stream.corpus.uri)


class UnhurriedExecution(ExecutionCallback):
    """Lets Ray Data's executor rest between its rounds.

    It waits for a block to be ready. Ours nearly always is, held back until the loop has taken those before it; the
    executor would then ask again and again, and keep a core of the training process busy with that.
    """

    def on_execution_step(self, executor: StreamingExecutor) -> None:
        """Rest for a small part of the time in which a block is used up."""
        time.sleep(_ROUND_SECONDS)


class LaneReader(Datasource):
    """Some lanes of a stream as a Ray Data source with one endless read task."""

    def __init__(self, stream: Stream, *, lanes: Sequence[int], cursor: Int32[np.ndarray, "rows 4"]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream
        self.lanes = tuple(lanes)
        self.cursor = cursor
        step_bytes = len(self.lanes) * _row_bytes(stream.sequence_length)
        self.steps_per_block = max(1, min(_MAX_STEPS_PER_BLOCK, _BLOCK_BYTES // step_bytes))
        self.block_bytes = self.steps_per_block * step_bytes

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown: there is no end."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """One task, whatever is asked for: the lanes' order in the blocks is part of the contract."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        read = partial(_blocks, self.stream, self.lanes, self.cursor, self.steps_per_block)
        return [ReadTask(read, unknown)]


def pieces(reader: LaneReader) -> Generator[Piece]:
    """The reader's steps as they come out of Ray Data. Not for several threads at once: see ``_dataset``."""
    return _pieces(_dataset(reader), lanes=reader.lanes)


def _dataset(reader: LaneReader) -> ray.data.Dataset:
    # Beside the devices it feeds, and without a claim on CPUs, of which a training worker's host has promised none.
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    # The context is the process's own, and a dataset takes what it finds there when it is made.
    with DataContext.current(_context(reader.block_bytes)):
        dataset: ray.data.Dataset = ray.data.read_datasource(
            reader, num_cpus=0, override_num_blocks=1, label_selector=here
        )
    return dataset


def _pieces(dataset: ray.data.Dataset, *, lanes: tuple[int, ...]) -> Generator[Piece]:
    tables = dataset.iter_batches(batch_size=len(lanes), batch_format="pyarrow", prefetch_batches=1)
    try:
        # Left to the garbage collector, Ray's iterator would end the reader at some later time, or never.
        with closing(cast(Generator[pa.Table], iter(tables))) as opened:
            for table in opened:
                yield _piece(table, lanes=lanes)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, TpuctlError):
            raise
        # Made anew: Ray has added advice about its own settings to the text of this one.
        raise type(cause)(cause.message, hint=cause.hint, where=cause.where) from error


def _context(block_bytes: int) -> DataContext:
    context = DataContext.get_current().copy()
    # A block leaves as soon as it is over this size and is cut when it is over 1.5 times of it: ours pass whole.
    context.target_max_block_size = int(0.8 * block_bytes)
    limits = context.execution_options.resource_limits
    context.execution_options.resource_limits = limits.copy(object_store_memory=_BLOCKS_AHEAD * block_bytes)
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.custom_execution_callback_classes = [UnhurriedExecution]
    return context


def _blocks(
    stream: Stream, lanes: tuple[int, ...], cursor: Int32[np.ndarray, "rows 4"], steps_per_block: int
) -> Iterator[pa.Table]:
    """The read task: runs in a process of its own, which has numpy, pyarrow and the tokenizer but no devices."""
    for steps in batched(read_stream(stream, lanes=lanes, cursor=cursor), steps_per_block):
        yield pa.concat_tables([_table(piece, lanes=lanes) for piece in steps])


def _table(piece: Piece, *, lanes: tuple[int, ...]) -> pa.Table:
    columns = {name: _arrow_column(getattr(piece.batch, name)) for name in HostBatch.__slots__}
    columns["lane"] = pa.array(lanes, pa.int32())
    columns["faults"] = _arrow_column(np.tile(piece.faults, (len(lanes), 1)))
    return pa.table(columns)


def _piece(table: pa.Table, *, lanes: tuple[int, ...]) -> Piece:
    found = tuple(table["lane"].to_pylist())
    assert found == lanes, f"Ray Data delivered rows of lanes {found}, expected {lanes}"
    batch = HostBatch(**{name: _numpy_column(table[name]) for name in HostBatch.__slots__})
    return Piece(batch=batch, faults=_numpy_column(table["faults"])[0])


def _arrow_column(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _numpy_column(column: pa.ChunkedArray) -> np.ndarray:
    """A copy: what stays in the object store is pinned there for as long as anyone looks at it."""
    array = column.combine_chunks()
    if not pa.types.is_fixed_size_list(array.type):
        return np.array(array.to_numpy(zero_copy_only=False))
    return np.array(array.flatten().to_numpy(zero_copy_only=False)).reshape(len(array), array.type.list_size)


def _row_bytes(sequence_length: int) -> int:
    per_token, per_row = 5 * 4, (6 + len(FAULTS)) * 4
    return sequence_length * per_token + per_row
