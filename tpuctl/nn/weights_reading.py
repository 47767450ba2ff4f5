"""From byte ranges of safetensors files to the shards of one leaf, without ever holding a tensor whole.

Each piece of a file is read once by a host, converted, and put where its devices' shards want it. The largest thing
in memory beside the shards themselves is ``_READERS`` pieces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from tpuctl.errors import StorageError, WeightsError
from tpuctl.nn.weights_boxes import Box, box_of, extents, offset, overlap, runs, slices, volume
from tpuctl.nn.weights_checksum import Checksums
from tpuctl.nn.weights_leaves import DTYPES, LeafFiles, Source, pieces
from tpuctl.safetensors import ITEM_BYTES, Tensor
from tpuctl.storage import is_gcs, open_storage

_READERS = 8
# Turned in blocks that stay in a core's cache, a matrix takes a tenth of the time.
_BLOCK_BYTES = 1 << 20
_ALIGNMENT = 64


class Reader:
    """Reads leaves from a folder; counts the bytes."""

    def __init__(self, folder: str) -> None:
        self.bytes_read = 0
        self.checksums = Checksums()
        self._counting = threading.Lock()
        # Requests wait for a bucket; copying out of mapped files waits for nothing but a core.
        threads = _READERS if is_gcs(folder) else min(_READERS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="weights")

    def read(self, leaf: LeafFiles, sharding: NamedSharding, dtype: np.dtype[Any]) -> Array:
        """The leaf as this host's part of a global array.

        Raises:
            WeightsError: a file ends too early; names file and tensor.
            StorageError: it can't be read.
        """
        places = sharding.addressable_devices_indices_map(leaf.shape)
        boxes = {device: box_of(index, leaf.shape) for device, index in places.items() if index is not None}
        shards = {box: _aligned(extents(box), dtype) for box in set(boxes.values())}
        work = [self._pool.submit(self._fetch, source, at, shards) for source, at in pieces(leaf, list(shards))]
        for piece in work:
            piece.result()
        arrays = [jax.device_put(memory, device) for device, memory in _apart(shards, boxes)]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def _fetch(self, source: Source, at: Box, shards: dict[Box, np.ndarray]) -> None:
        in_bucket = is_gcs(source.tensor.file)
        values = self._downloaded(source, at) if in_bucket else _mapped(source, at)
        for block in runs(at, source.view, limit=_BLOCK_BYTES // values.itemsize):
            for box, shard in shards.items():
                wanted = source.wanted(box)
                common = None if wanted is None else overlap(wanted, block)
                if common is not None:
                    self._count(0 if in_bucket else volume(common) * values.itemsize)
                    source.into(shard, box, values[slices(common, within=at)].astype(shard.dtype, copy=False), common)

    def _downloaded(self, source: Source, at: Box) -> np.ndarray:
        tensor = source.tensor
        start, num_bytes = _place(source, at)
        data = open_storage(tensor.file).read_range(tensor.file, start, start + num_bytes)
        if len(data) != num_bytes:
            raise _shrunk(tensor)
        self.checksums.add(tensor.file, start, data)
        self._count(num_bytes)
        return np.frombuffer(data, DTYPES[tensor.dtype]).reshape(extents(at))

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self.bytes_read += num_bytes


def _mapped(source: Source, at: Box) -> np.ndarray:
    """Part of a file as memory: only what is copied out of it is read, as far as the kernel's pages allow."""
    tensor = source.tensor
    start, num_bytes = _place(source, at)
    try:
        with Path(tensor.file.removeprefix("file://")).open("rb") as file:
            # Touching a mapped page beyond the end of a file kills the process.
            if os.fstat(file.fileno()).st_size < start + num_bytes:
                raise _shrunk(tensor)
            whole = np.memmap(file, DTYPES[tensor.dtype], mode="r", offset=start, shape=extents(at))
    except OSError as error:
        raise StorageError(f"{tensor.file}: {error.strerror or error}") from error
    return whole


def _place(source: Source, at: Box) -> tuple[int, int]:
    size = ITEM_BYTES[source.tensor.dtype]
    return source.tensor.start + offset(at, source.view) * size, volume(at) * size


def _shrunk(tensor: Tensor) -> WeightsError:
    return WeightsError(f"{tensor.file} ends within tensor {tensor.name}: has it changed meanwhile?")


def _apart(shards: dict[Box, np.ndarray], boxes: dict[Any, Box]) -> Iterator[tuple[Any, np.ndarray]]:
    """Each device with memory of its own: a CPU device takes it over, and a donated array is written to."""
    taken = set()
    for device, box in boxes.items():
        memory = shards[box]
        if box in taken:
            memory = _aligned(memory.shape, memory.dtype)
            memory[...] = shards[box]
        taken.add(box)
        yield device, memory


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that a CPU device can take as its own; one that starts elsewhere is copied."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
