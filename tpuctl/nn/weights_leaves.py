"""The leaves of a model's parameters as parts of stored tensors: what of which file makes them. Imports no jax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tpuctl.nn.weights_boxes import Box, merged, runs, slices, volume, widened
from tpuctl.safetensors import ITEM_BYTES, Tensor
from tpuctl.storage import is_gcs

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""What weights may be stored as; anything else is quantised, or no weight."""

_PIECE_BYTES = 8 << 20
# A request to a bucket costs as much as reading about so many bytes more.
_GAP_BYTES = 256 << 10


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


def excess(source: Source, boxes: Sequence[Box]) -> float:
    """Bytes read of a source ÷ bytes needed of it, by a host whose devices hold these boxes of the leaf."""
    if not is_gcs(source.tensor.file):
        return 1.0
    needed = sum(volume(found) for box in boxes if (found := source.wanted(box)) is not None)
    return sum(map(volume, _covers(source, boxes))) / needed if needed else 1.0


def pieces(leaf: LeafFiles, boxes: Sequence[Box]) -> Iterator[tuple[Source, Box]]:
    """What a host looks at that needs these boxes of the leaf: parts of the sources' views, each one run of bytes.

    Of an object in a bucket they are read whole. Of a file they are mapped, and what lies between costs nothing.
    """
    for source in leaf.sources:
        for box in _covers(source, boxes):
            for part in runs(box, source.view, limit=_PIECE_BYTES // ITEM_BYTES[source.tensor.dtype]):
                yield source, part


def _covers(source: Source, boxes: Sequence[Box]) -> list[Box]:
    gap = _GAP_BYTES // ITEM_BYTES[source.tensor.dtype] if is_gcs(source.tensor.file) else math.prod(source.view)
    wanted = [found for box in boxes if (found := source.wanted(box)) is not None]
    return merged([widened(box, source.view, gap=gap) for box in merged(wanted, gap=gap)], gap=0)
