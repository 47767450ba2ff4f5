"""A leaf read by whole rows of its tensors, and the exchange among the devices that turns rows into their shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from tpuctl.nn.weights_boxes import extents
from tpuctl.nn.weights_leaves import LeafFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class ByRows:
    """A leaf as it is stored, its outer dimensions merged into rows that all mesh axes of the leaf split.

    ``columns`` is the sharding of the same array once rows have been exchanged for columns.
    """

    leaf: LeafFiles
    sharding: NamedSharding
    columns: NamedSharding
    stored_shape: tuple[int, ...]
    order: tuple[int, ...]

    def exchanged(self, rows: Array, target: NamedSharding, dtype: np.dtype[Any]) -> Array:
        """The leaf with our dimensions, as ``target`` has it. Donates ``rows``."""

        def turned(rows: Array) -> Array:
            # All-to-all first, by itself: only then do reshaping and transposing keep every shard where it is.
            columns = lax.with_sharding_constraint(rows, self.columns).astype(dtype)
            leaf: Array = columns.reshape(self.stored_shape).transpose(self.order)
            return leaf

        exchange = jax.jit(turned, out_shardings=target, donate_argnums=0)
        # Waited for: to read on would put the next leaf's rows beside this one's.
        made: Array = jax.block_until_ready(exchange(rows))
        return made


def by_rows_of(leaf: LeafFiles, target: NamedSharding) -> ByRows | None:
    """The leaf by rows; None where its rows do not divide among the devices that hold a shard each."""
    source, stacked = leaf.sources[0], len(leaf.sources[0].place)
    lead, sizes = leaf.shape[:stacked], extents(source.part)
    entries = [*target.spec, *[None] * (len(leaf.shape) - len(target.spec))]
    in_file = [_axes(entries[stacked + source.order.index(axis)]) for axis in range(len(sizes))]
    parts = math.prod(int(target.mesh.shape[axis]) for axes in in_file for axis in axes)
    merged = next((m for m in range(1, len(sizes)) if math.prod(sizes[:m]) % parts == 0), None)
    if merged is None or any(in_file[1:merged]) or sizes[1:merged] != source.view[1:merged]:
        return None
    all_axes = tuple(axis for axes in in_file for axis in axes)
    rows = [*entries[:stacked], all_axes, *[None] * (len(sizes) - merged)]
    columns = [*entries[:stacked], in_file[0] or None, *(axes or None for axes in in_file[merged:])]
    return ByRows(
        leaf=_merged(leaf, merged),
        sharding=NamedSharding(target.mesh, PartitionSpec(*rows)),
        columns=NamedSharding(target.mesh, PartitionSpec(*columns)),
        stored_shape=(*lead, *sizes),
        order=(*range(stacked), *(stacked + axis for axis in source.order)),
    )


def _merged(leaf: LeafFiles, count: int) -> LeafFiles:
    """The leaf with the tensors' own order of dimensions, the first ``count`` of them merged."""
    sources = []
    for source in leaf.sources:
        inner = math.prod(source.view[1:count])
        start, stop = source.part[0]
        view = (source.view[0] * inner, *source.view[count:])
        part = ((start * inner, stop * inner), *source.part[count:])
        sources.append(replace(source, view=view, part=part, order=tuple(range(len(view)))))
    shape = (*leaf.shape[: len(leaf.sources[0].place)], *extents(sources[0].part))
    return replace(leaf, shape=shape, sources=tuple(sources))


def _axes(entry: Any) -> Sequence[str]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
