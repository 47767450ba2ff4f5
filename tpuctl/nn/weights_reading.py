"""From byte ranges of safetensors files to the shards of one leaf, without ever holding a tensor whole.

Each piece of a file is read once by a host, converted, and put where its devices' shards want it. The largest thing
in memory beside the shards themselves is ``_READERS`` pieces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from tpuctl.errors import WeightsError
from tpuctl.nn.weights_boxes import Box, box_of, extents, offset, overlap, slices, volume
from tpuctl.nn.weights_leaves import DTYPES, LeafFiles, Source, pieces
from tpuctl.safetensors import ITEM_BYTES
from tpuctl.storage import open_storage

_READERS = 8
_ALIGNMENT = 64


class Reader:
    """Reads leaves; counts the bytes."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="weights")

    def read(self, leaf: LeafFiles, sharding: NamedSharding, dtype: np.dtype[Any]) -> Array:
        """The leaf as this host's part of a global array.

        Raises:
            WeightsError: a file ends too early; names file and tensor.
            StorageError: it can't be read.
        """
        places = sharding.addressable_devices_indices_map(leaf.shape)
        boxes = {device: box_of(index, leaf.shape) for device, index in places.items() if index is not None}
        shards = {box: _aligned(extents(box), dtype) for box in set(boxes.values())}
        for _ in self._pool.map(lambda piece: self._fetch(*piece, shards), pieces(leaf, list(shards))):
            pass
        arrays = [jax.device_put(memory, device) for device, memory in _apart(shards, boxes)]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def _fetch(self, source: Source, at: Box, shards: dict[Box, np.ndarray]) -> None:
        values = self._values(source, at)
        for box, shard in shards.items():
            wanted = source.wanted(box)
            common = None if wanted is None else overlap(wanted, at)
            if common is not None:
                source.into(shard, box, values[slices(common, within=at)].astype(shard.dtype, copy=False), common)

    def _values(self, source: Source, at: Box) -> np.ndarray:
        tensor, size = source.tensor, ITEM_BYTES[source.tensor.dtype]
        start = tensor.start + offset(at, source.view) * size
        data = open_storage(tensor.file).read_range(tensor.file, start, start + volume(at) * size)
        if len(data) != volume(at) * size:
            raise WeightsError(f"{tensor.file} ends within tensor {tensor.name}: has it changed meanwhile?")
        with self._counting:
            self.bytes_read += len(data)
        return np.frombuffer(data, DTYPES[tensor.dtype]).reshape(extents(at))


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
