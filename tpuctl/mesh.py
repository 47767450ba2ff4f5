"""The device mesh, and the one map from logical axes (what a dimension means) to mesh axes (where it lies).

Knows ``MeshPlan`` and jax; knows no model. Weights are stored in shards over ``fsdp``, ``expert`` and ``data`` (each
device keeps its part of the weights and of the optimizer state only) and once per slice; ``tensor`` splits the heads,
the MLP, the vocabulary and, between layers, the sequence. Over ``expert`` the experts of a model are dealt out; to all
else it is more of ``fsdp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuctl.errors import TpuctlError
from tpuctl.plan.schema import MeshPlan

AXES = ("slice", "data", "fsdp", "expert", "tensor")
BATCH_AXES = ("slice", "data", "fsdp", "expert")


class MeshError(TpuctlError):
    """The mesh does not fit the devices, or a dimension does not fit the mesh."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A mesh axis, or neighbouring ones as one, as collectives see it.

    ``rings``: its length along each dimension of the torus it spans, outermost first.
    """

    name: str | tuple[str, ...]
    rings: tuple[int, ...] = (1,)

    @property
    def size(self) -> int:
        """Devices on the axis."""
        return math.prod(self.rings)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardingRules:
    """Logical axis → mesh axes, the outermost first. A logical axis that is not a field here is refused."""

    batch: tuple[str, ...] = BATCH_AXES
    layer: tuple[str, ...] = ()
    embed: tuple[str, ...] = ("fsdp", "expert", "data")
    expert_embed: tuple[str, ...] = ("fsdp", "data")
    heads: tuple[str, ...] = ("tensor",)
    kv_heads: tuple[str, ...] = ("tensor",)
    shared_kv_heads: tuple[str, ...] = ()
    head_dim: tuple[str, ...] = ()
    mlp: tuple[str, ...] = ("tensor",)
    experts: tuple[str, ...] = ("expert",)
    router: tuple[str, ...] = ()
    vocab: tuple[str, ...] = ("tensor",)
    position: tuple[str, ...] = ()
    norm: tuple[str, ...] = ()
    rank: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()

    def mesh_axes(self, logical: str) -> tuple[str, ...]:
        """Mesh axes of one logical axis.

        Raises:
            MeshError: no such logical axis.
        """
        if logical not in self.__slots__:
            raise MeshError(f"no sharding rule for the logical axis {logical!r}; known: {', '.join(self.__slots__)}")
        axes: tuple[str, ...] = getattr(self, logical)
        return axes

    def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """PartitionSpec of an array whose dimensions have these logical axes (``None``: not split).

        Raises:
            MeshError: two dimensions would lie on the same mesh axis.
        """
        entries = [self.mesh_axes(axis) if axis is not None else () for axis in axes]
        used: set[str] = set()
        for logical, entry in zip(axes, entries, strict=True):
            if collision := used.intersection(entry):
                raise MeshError(
                    f"logical axes {tuple(axes)}: {logical!r} meets another on mesh axis {min(collision)!r}"
                )
            used.update(entry)
        return PartitionSpec(*(entry or None for entry in entries))


RULES = ShardingRules()


def create_mesh(shape: MeshPlan, *, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices: TPU chips in the order of their place in the torus, others in process order.

    Inner axes thus lie along rings of neighbouring chips, ``tensor``, which talks most, the innermost. A TPU host
    owns a block of the torus, so the rows it feeds (``host_rows``) need not be contiguous.

    Raises:
        MeshError: the axes' product is not the number of devices, or ``slice`` not the number of slices.
    """
    ordered = sorted(jax.devices() if devices is None else devices, key=_device_order)
    lengths = tuple(int(getattr(shape, axis)) for axis in AXES)
    if math.prod(lengths) != len(ordered):
        raise MeshError(f"mesh {_describe(lengths)} has {math.prod(lengths)} devices, but there are {len(ordered)}")
    slices = len({_slice_index(device) for device in ordered})
    if slices not in (1, shape.slice):
        raise MeshError(f"mesh axis slice is {shape.slice}, but the devices lie in {slices} slices")
    return Mesh(np.array(ordered, dtype=object).reshape(lengths), AXES)


def named_sharding(mesh: Mesh, axes: Sequence[str | None], *, shape: Sequence[int]) -> NamedSharding:
    """Where an array with these logical axes lies.

    Raises:
        MeshError: a dimension does not divide by the mesh axes it lies on.
    """
    spec = RULES.spec(axes)
    for size, logical in zip(shape, axes, strict=True):
        entry = RULES.mesh_axes(logical) if logical is not None else ()
        parts = math.prod(mesh.shape[axis] for axis in entry)
        if size % parts:
            raise MeshError(f"{logical} of size {size} does not divide into {parts} parts over {'×'.join(entry)}")
    return NamedSharding(mesh, spec)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of the global batch over every axis but ``tensor``."""
    return NamedSharding(mesh, PartitionSpec(RULES.batch))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def mesh_axis(mesh: Mesh, *names: str) -> Axis:
    """The axis with its rings: how it lies on the torus, or one ring where there is no torus or it fits none.

    Several names, neighbours in the mesh, are the axis they make together.
    """
    long = tuple(name for name in names if mesh.shape[name] > 1) or names[:1]
    size = math.prod(int(mesh.shape[name]) for name in long)
    inner = math.prod(int(mesh.shape[axis]) for axis in AXES[AXES.index(long[-1]) + 1 :])
    grid = _torus(mesh.devices.reshape(int(mesh.shape["slice"]), -1)[0])
    return Axis(name=long if len(long) > 1 else long[0], rings=_rings(grid, stride=inner, size=size) or (size,))


def host_rows(mesh: Mesh, *, global_batch: int) -> tuple[int, ...]:
    """Rows of the global batch that this process must feed, ascending.

    Raises:
        MeshError: the batch does not divide over the batch axes.
    """
    named_sharding(mesh, ("batch",), shape=(global_batch,))
    indices = batch_sharding(mesh).addressable_devices_indices_map((global_batch,)).values()
    rows = {row for index in indices if index is not None for row in range(global_batch)[index[0]]}
    return tuple(sorted(rows))


def _device_order(device: Any) -> tuple[int, ...]:
    if (place := _place(device)) is not None:
        return _slice_index(device), *place
    return _slice_index(device), device.process_index, device.id


def _place(device: Any) -> tuple[int, ...] | None:
    """Coordinates in the torus, the slowest first, and the core on the chip; ``None`` off TPU."""
    if device.platform != "tpu":
        return None
    return *reversed(device.coords), device.core_on_chip


def _torus(devices: np.ndarray) -> tuple[int, ...]:
    """Lengths of the torus' dimensions, the slowest first, if these devices fill it in order; else nothing."""
    places = [place for device in devices if (place := _place(device)) is not None]
    if len(places) != len(devices):
        return ()
    lengths = tuple(len({place[i] for place in places}) for i in range(len(places[0])))
    return lengths if math.prod(lengths) == len(devices) else ()


def _rings(grid: tuple[int, ...], *, stride: int, size: int) -> tuple[int, ...]:
    """Factors of an axis of ``size`` devices ``stride`` apart, one for each dimension of the grid it covers."""
    rings: list[int] = []
    for length in reversed(grid):
        skipped = math.gcd(length, stride)
        taken = math.gcd(length // skipped, size)
        stride, size = stride // skipped, size // taken
        if (stride > 1 and length > skipped) or (size > 1 and skipped * taken < length):
            return ()  # the axis cuts across the grid's lines
        rings = [taken, *rings] if taken > 1 else rings
    return tuple(rings) if size == 1 else ()


def _slice_index(device: Any) -> int:
    # CPU devices, hence simulated slices, carry no slice index: there the process order stands for it.
    return int(getattr(device, "slice_index", None) or 0)


def _describe(lengths: Sequence[int]) -> str:
    return " × ".join(f"{axis} {length}" for axis, length in zip(AXES, lengths, strict=True))
