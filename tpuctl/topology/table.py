"""The table of TPU generations, machines and topologies, read once from ``table.json``."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("table.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A host type: how many chips one VM has and which topologies are built of it."""

    name: str
    chips: int
    topologies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One TPU generation. ``device`` is a JAX device: a chip, or half of one where a chip shows up as two.

    ``known_elsewhere`` and ``max_cubes`` describe slices that exist but that Ray's slice reservation refuses;
    they only serve to word the refusal.
    """

    name: str
    pod_prefix: str
    accelerator_type: str
    device_kind: str
    aliases: tuple[str, ...]
    dims: int
    cores_per_chip: int
    devices_per_chip: int
    hbm_bytes_per_device: int
    bf16_flops_per_device: float
    hbm_bytes_per_second_per_device: float
    wrap_rule: str
    known_elsewhere: tuple[str, ...]
    max_cubes: int
    machines: tuple[Machine, ...]

    @property
    def topologies(self) -> tuple[str, ...]:
        """Every topology Ray can reserve, smallest first."""
        names = {topology for machine in self.machines for topology in machine.topologies}
        return tuple(sorted(names, key=lambda name: (chips_of(name), parse_dims(name))))

    @property
    def canonical_topologies(self) -> tuple[str, ...]:
        """``topologies`` with one spelling each: v4 also takes the axes in other orders (4x8x4 for 4x4x8)."""
        return tuple(t for t in self.topologies if in_order(t) == t or in_order(t) not in self.topologies)

    @property
    def chip_counts(self) -> frozenset[int]:
        """The sizes a slice can have, in chips."""
        return frozenset(chips_of(topology) for topology in self.topologies)

    def machines_for(self, topology: str) -> tuple[Machine, ...]:
        """The machines a topology can be built of, Ray's own choice first."""
        return tuple(machine for machine in self.machines if topology in machine.topologies)


@functools.cache
def generations() -> tuple[Generation, ...]:
    """All generations, newest first."""
    document = json.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(_generation(row) for row in document["generations"])


def generation(name: str) -> Generation:
    """The generation of exactly that name.

    Raises:
        KeyError: there is none; ``resolve_slice`` is the forgiving way in.
    """
    for candidate in generations():
        if candidate.name == name:
            return candidate
    raise KeyError(name)


def parse_dims(topology: str) -> tuple[int, ...]:
    """``"4x4x8"`` → ``(4, 4, 8)``."""
    return tuple(int(part) for part in topology.split("x"))


def chips_of(topology: str) -> int:
    """Chips in a topology: the product of its dimensions."""
    return math.prod(parse_dims(topology))


def in_order(topology: str) -> str:
    """The topology with its axes sorted."""
    return "x".join(str(dim) for dim in sorted(parse_dims(topology)))


def _generation(row: dict[str, Any]) -> Generation:
    devices_per_chip = row["devices_per_chip"]
    return Generation(
        name=row["name"],
        pod_prefix=row["pod_prefix"],
        accelerator_type=row["ray_accelerator_type"],
        device_kind=row["device_kind"],
        aliases=tuple(row["aliases"]),
        dims=row["dims"],
        cores_per_chip=row["cores_per_chip"],
        devices_per_chip=devices_per_chip,
        hbm_bytes_per_device=row["hbm_bytes_per_device"],
        bf16_flops_per_device=row["bf16_tflops_per_chip"] * 1e12 / devices_per_chip,
        hbm_bytes_per_second_per_device=row["hbm_gb_per_second_per_chip"] * 1e9 / devices_per_chip,
        wrap_rule=row["wrap"],
        known_elsewhere=tuple(row["beyond_ray"]["topologies"]),
        max_cubes=row["beyond_ray"]["max_cubes"],
        machines=tuple(
            Machine(name=machine["name"], chips=machine["chips"], topologies=tuple(machine["topologies"]))
            for machine in row["machines"]
        ),
    )
