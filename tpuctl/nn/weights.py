"""Weights from a model folder into sharded arrays: each host reads its share of the files, and none a whole copy.

A device's shard of a matrix is often a strip of columns, which lies scattered over all of the file. Where several
hosts would each have to read nearly everything for their strips, each reads whole rows instead, and the devices
exchange rows for columns among themselves. Docs: docs/design/weights.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuctl.model_folder import open_weights
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree
from tpuctl.nn.weights_boxes import Box, box_of
from tpuctl.nn.weights_fit import fit
from tpuctl.nn.weights_leaves import LeafFiles, excess
from tpuctl.nn.weights_reading import Reader

# So much more than what its devices need may a host read before an exchange is worth its compilation.
_TOLERATED = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Parameters, and the bytes this host has read for them."""

    params: ParamTree
    bytes_read: int


def load_params(spec: ModelSpec, uri: str, *, family: str, shardings: ParamTree, dtype: Any) -> Loaded:
    """The parameters of a model folder, as ``nn.params`` has them, on the devices where ``shardings`` puts them.

    Every host of the mesh calls this with the same arguments. One leaf is read after another, so that a host holds
    its part of no more than one beside what is done.

    Args:
        spec: The model, as the folder's ``config.json`` describes it.
        uri: The folder, local or ``gs://``.
        family: Its ``model_type``, which names the tensors.
        shardings: A ``NamedSharding`` for each parameter.
        dtype: Of the result; stored values are converted, float32 to bfloat16 by rounding to nearest.

    Raises:
        WeightsError: the folder's tensors are not exactly those of the spec, or damaged; nothing is ever made up.
        StorageError: it can't be read.
    """
    leaves = fit(open_weights(uri), spec, family=family)
    reader = Reader()
    try:
        params = jax.tree_util.tree_map_with_path(
            lambda path, place: _read_leaf(leaves[_path(path)], place, np.dtype(dtype), reader), shardings
        )
    finally:
        reader.close()
    return Loaded(params=params, bytes_read=reader.bytes_read)


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def _read_leaf(leaf: LeafFiles, target: NamedSharding, dtype: np.dtype[Any], reader: Reader) -> Array:
    rows = _by_rows(leaf, target) if _is_wasteful(leaf, target) else None
    if rows is None or _excess(leaf, rows) >= _excess(leaf, target):
        return reader.read(leaf, target, dtype)
    staged = reader.read(leaf, rows, leaf.stored_dtype or dtype)
    exchange = jax.jit(lambda x: x.astype(dtype), out_shardings=target, donate_argnums=0)
    # Waited for: reading on would put the next leaf's rows beside this one's.
    return jax.block_until_ready(exchange(staged))


def _is_wasteful(leaf: LeafFiles, sharding: NamedSharding) -> bool:
    return jax.process_count() > 1 and _excess(leaf, sharding) > _TOLERATED


def _excess(leaf: LeafFiles, sharding: NamedSharding) -> float:
    """Bytes read ÷ bytes needed by the host with the most. Equal on all hosts, since all must decide alike."""
    by_host: dict[int, set[Box]] = {}
    for device, index in sharding.devices_indices_map(leaf.shape).items():
        by_host.setdefault(device.process_index, set()).add(box_of(index, leaf.shape))
    return max(excess(leaf.sources[0], list(boxes)) for boxes in by_host.values())


def _by_rows(leaf: LeafFiles, target: NamedSharding) -> NamedSharding | None:
    """``target`` with all mesh axes moved to the outermost dimension of the file that divides by them."""
    stacked, order = len(leaf.sources[0].place), leaf.sources[0].order
    entries = [*target.spec, *[None] * (len(leaf.shape) - len(target.spec))]
    in_file = [stacked + order.index(axis) for axis in range(len(order))]
    axes = tuple(axis for dimension in in_file for axis in _axes(entries[dimension]))
    for dimension in in_file:
        if leaf.shape[dimension] % _parts(target.mesh, axes) == 0:
            spec = [axes if at == dimension else entry if at < stacked else None for at, entry in enumerate(entries)]
            return NamedSharding(target.mesh, PartitionSpec(*spec))
    return None


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _parts(mesh: Mesh, axes: tuple[str, ...]) -> int:
    return math.prod(int(mesh.shape[axis]) for axis in axes)
