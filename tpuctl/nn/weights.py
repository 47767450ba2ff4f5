"""Weights from a model folder into sharded arrays: each host reads its share of the files, and none a whole copy.

A device's shard of a matrix is often a strip of columns, which lies scattered over all of the file. Where several
hosts would each have to read nearly everything for their strips, each reads whole rows instead, and the devices
exchange rows for columns among themselves. What is to be quantised is, on the devices, as soon as it is there.
Docs: docs/design/weights.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from tpuctl.model_folder import open_weights
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.quantised import summed_axes
from tpuctl.nn.params import ParamTree
from tpuctl.nn.quantised import Quantised, is_quantised, quantise
from tpuctl.nn.weights_boxes import Box, box_of
from tpuctl.nn.weights_exchange import by_rows_of
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

    Every host of the mesh calls this with the same arguments. One leaf is read after another, so that a host, and a
    device that quantises, holds its part of no more than one beside what is done.

    Args:
        spec: The model, as the folder's ``config.json`` describes it.
        uri: The folder, local or ``gs://``.
        family: Its ``model_type``, which names the tensors.
        shardings: A ``NamedSharding`` for each parameter, two in a ``Quantised`` for one to be quantised.
        dtype: Of the result, one or a tree of them as ``shardings`` is. Stored values are converted, float32 to
            bfloat16 by rounding to nearest.

    Raises:
        WeightsError: the folder's tensors are not exactly those of the spec, or damaged; nothing is ever made up.
        StorageError: it can't be read.
    """
    files = open_weights(uri)
    leaves = fit(files, spec, family=family)
    reader = Reader(uri)
    dtypes = dtype if isinstance(dtype, dict) else jax.tree.map(lambda _: dtype, shardings, is_leaf=is_quantised)

    def read(path: Any, place: Any, kind: Any) -> Any:
        leaf = leaves[_path(path)]
        if isinstance(place, Quantised):
            return _read_quantised(leaf, place, np.dtype(kind), reader)
        return _read_leaf(leaf, place, np.dtype(kind), reader)

    try:
        params = jax.tree_util.tree_map_with_path(read, shardings, dtypes, is_leaf=is_quantised)
        reader.checksums.verify(files.files)
    finally:
        reader.close()
    return Loaded(params=params, bytes_read=reader.bytes_read)


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def _read_quantised(leaf: LeafFiles, target: Quantised, dtype: np.dtype[Any], reader: Reader) -> Quantised:
    summed = summed_axes(leaf.name)
    assert summed is not None
    place: Any = target.values
    whole = _read_leaf(leaf, place, dtype, reader)
    # Waited for: to read on would put the next leaf beside this one.
    made: Quantised = jax.block_until_ready(_quantising(summed, target)(whole))
    return made


@functools.cache
def _quantising(summed: tuple[int, ...], target: Quantised) -> Any:
    """One program for all leaves that are alike."""
    return jax.jit(functools.partial(quantise, summed=summed), out_shardings=target)


def _read_leaf(leaf: LeafFiles, target: NamedSharding, dtype: np.dtype[Any], reader: Reader) -> Array:
    by_rows = by_rows_of(leaf, target) if jax.process_count() > 1 and _excess(leaf, target) > _TOLERATED else None
    if by_rows is None or _excess(by_rows.leaf, by_rows.sharding) >= _excess(leaf, target):
        return reader.read(leaf, target, dtype)
    rows = reader.read(by_rows.leaf, by_rows.sharding, leaf.stored_dtype or dtype)
    return by_rows.exchanged(rows, target, dtype)


def _excess(leaf: LeafFiles, sharding: NamedSharding) -> float:
    """Bytes read ÷ bytes needed by the host with the most. Equal on all hosts, since all must decide alike."""
    by_host: dict[int, set[Box]] = {}
    places: dict[Any, Any] = dict(sharding.devices_indices_map(leaf.shape))
    for device, index in places.items():
        by_host.setdefault(device.process_index, set()).add(box_of(index, leaf.shape))
    return max(excess(leaf.sources[0], list(boxes)) for boxes in by_host.values())
