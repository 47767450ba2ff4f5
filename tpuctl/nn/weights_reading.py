"""From byte ranges of safetensors files to the shards of one leaf, without ever holding a tensor whole.

Each piece of a file is read once by a host, converted, and put where its devices' shards want it. The largest thing
in memory beside the shards themselves is ``_READERS`` pieces.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from tpuctl.errors import WeightsError
from tpuctl.nn.weights_boxes import Box, box_of, extents, merged, offset, overlap, runs, slices, volume, widened
from tpuctl.safetensors import ITEM_BYTES, Tensor
from tpuctl.storage import open_storage

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""What weights may be stored as; anything else is quantised, or no weight."""

_READERS = 8
_PIECE_BYTES = 8 << 20
# A request to a bucket costs as much as reading about so many bytes more.
_GAP_BYTES = 256 << 10
_ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A stored tensor and where it belongs in a leaf.

    The tensor, reshaped to ``view`` and cut to ``part``, transposed by ``order``, is ``leaf[place]``: ``place`` counts
    the layer, and the expert where there are several; it is empty for a leaf that is not stacked.
    """

    tensor: Tensor
    place: tuple[int, ...]
    view: tuple[int, ...]
    part: Box
    order: tuple[int, ...]

    def wanted(self, box: Box) -> Box | None:
        """The part of ``view`` that a box of the leaf is made of, None if it is of other tensors."""
        stacked = len(self.place)
        if not all(start <= at < stop for at, (start, stop) in zip(self.place, box, strict=False)):
            return None
        found = list(self.part)
        for side, axis in zip(box[stacked:], self.order, strict=True):
            origin = self.part[axis][0]
            found[axis] = (side[0] + origin, side[1] + origin)
        return tuple(found)

    def into(self, shard: np.ndarray, box: Box, values: np.ndarray, at: Box) -> None:
        """Put ``values``, which are ``at`` of the view, into ``shard``, which is ``box`` of the leaf."""
        target = shard[tuple(place - start for place, (start, _) in zip(self.place, box, strict=False))]
        sides = [(at[axis][0] - self.part[axis][0], at[axis][1] - self.part[axis][0]) for axis in self.order]
        target[slices(tuple(sides), within=box[len(self.place) :])] = values.transpose(self.order)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafFiles:
    """One leaf of the parameters and the tensors it is made of, all of one order of axes."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]

    @property
    def stored_dtype(self) -> np.dtype[Any] | None:
        """The dtype of all its tensors, None if they differ."""
        found = {source.tensor.dtype for source in self.sources}
        return DTYPES[found.pop()] if len(found) == 1 else None


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
        for _ in self._pool.map(lambda piece: self._fetch(*piece, shards), _pieces(leaf, list(shards))):
            pass
        counts = Counter(boxes.values())
        # A CPU device may take our memory as its own, but no two devices the same: donated, it is written to.
        arrays = [jax.device_put(shards[box], device, may_alias=counts[box] == 1) for device, box in boxes.items()]
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


def excess(source: Source, boxes: Sequence[Box]) -> float:
    """Bytes read of a source ÷ bytes needed of it, by a host whose devices hold these boxes of the leaf."""
    needed = sum(volume(found) for box in boxes if (found := source.wanted(box)) is not None)
    return sum(map(volume, _covers(source, boxes))) / needed if needed else 1.0


def _pieces(leaf: LeafFiles, boxes: Sequence[Box]) -> Iterator[tuple[Source, Box]]:
    for source in leaf.sources:
        for box in _covers(source, boxes):
            for part in runs(box, source.view, limit=_PIECE_BYTES // ITEM_BYTES[source.tensor.dtype]):
                yield source, part


def _covers(source: Source, boxes: Sequence[Box]) -> list[Box]:
    gap = _GAP_BYTES // ITEM_BYTES[source.tensor.dtype]
    wanted = [found for box in boxes if (found := source.wanted(box)) is not None]
    return merged([widened(box, source.view, gap=gap) for box in merged(wanted, gap=gap)], gap=0)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that a CPU device can take as its own; one that starts elsewhere is copied."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
