"""What a simulated slice is made of: its shape, and what each host of it carries.

Pure: nothing here starts or reads anything. The control side only; imports no ray.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, Self

SIMULATED_LABEL = "tpuctl.dev/simulated"
SIMULATED_VARIABLE = "TPUCTL_SIMULATED"


# That of a cluster's name, as the registry takes it.
_LONGEST_NAME = 41


class SliceLike(Protocol):
    """The fields of a slice that a simulation takes over: those of ``SlicePlan`` and of ``SliceShape``."""

    @property
    def accelerator_type(self) -> str:
        """Ray's accelerator type."""

    @property
    def pod_type(self) -> str:
        """Ray's pod type."""

    @property
    def topology(self) -> str:
        """The shape in chips."""

    @property
    def hosts(self) -> int:
        """Hosts per slice."""

    @property
    def chips_per_host(self) -> int:
        """Chips per host."""

    @property
    def devices_per_host(self) -> int:
        """JAX devices per host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedShape:
    """One or more equal slices, and ``beside`` them some of other shapes.

    ``accelerator_type`` and ``pod_type`` are Ray's (``TPU-V6E``, ``v6e-16``).
    """

    accelerator_type: str
    pod_type: str
    topology: str
    hosts: int
    chips_per_host: int
    devices_per_host: int
    slices: int = 1
    beside: tuple[SimulatedShape, ...] = ()

    @classmethod
    def from_slice(cls, source: SliceLike, *, slices: int | None = None) -> Self:
        """The shape of a plan's slices, or of ``slices`` slices of the topology table."""
        return cls(
            accelerator_type=source.accelerator_type,
            pod_type=source.pod_type,
            topology=source.topology,
            hosts=source.hosts,
            chips_per_host=source.chips_per_host,
            devices_per_host=source.devices_per_host,
            slices=getattr(source, "slices", 1) if slices is None else slices,
        )

    @classmethod
    def of(cls, sources: Sequence[SliceLike]) -> Self:
        """The shape of slices that are wanted at once, equal ones counted together."""
        counts = Counter[Self]()
        for source in sources:
            shape = cls.from_slice(source)
            counts[dataclasses.replace(shape, slices=1)] += shape.slices
        first, *others = (dataclasses.replace(shape, slices=count) for shape, count in counts.items())
        return dataclasses.replace(first, beside=tuple(others))

    @property
    def parts(self) -> tuple[SimulatedShape, ...]:
        """The shapes of which there are slices, each with its number."""
        return (dataclasses.replace(self, beside=()), *self.beside)

    @property
    def total_hosts(self) -> int:
        """Hosts over all slices: so many Ray nodes."""
        return sum(part.hosts * part.slices for part in self.parts)

    @property
    def name(self) -> str:
        """What a cluster of this shape is called unless named otherwise, e.g. ``v6e-4x4`` or ``v4-2x2x2-2slices``."""
        name = "_".join(part._own_name for part in self.parts)
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{self._own_name}_{blake2b(name.encode(), digest_size=4).hexdigest()}"

    @property
    def _own_name(self) -> str:
        generation = self.pod_type.partition("-")[0]
        slices = "" if self.slices == 1 else f"-{self.slices}slices"
        machine = "" if self.chips_per_host == 4 else f"-{self.chips_per_host}t"
        return f"{generation}-{self.topology}{machine}{slices}"

    def covers(self, other: SimulatedShape) -> bool:
        """Whether a cluster of this shape has what ``other`` asks for: the same slices, and enough of them."""
        return all(any(part._is_enough_for(asked) for part in self.parts) for asked in other.parts)

    def _is_enough_for(self, other: SimulatedShape) -> bool:
        return self.slices >= other.slices and dataclasses.replace(self, slices=other.slices) == other

    def __str__(self) -> str:
        return " and ".join(part._own_words for part in self.parts)

    @property
    def _own_words(self) -> str:
        slices = "1 slice" if self.slices == 1 else f"{self.slices} slices"
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{slices} of {self.accelerator_type} {self.topology} ({hosts} × {self.devices_per_host} CPU devices)"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSize:
    """What every simulated host offers beside its chips. Logical CPUs may well outnumber the machine's."""

    cpus: int = 4
    memory_bytes: int = 4 << 30
    object_store_bytes: int = 200_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """One host: ``environment`` is what a TPU VM's would be, from which Ray itself makes labels and resources."""

    slice_name: str
    worker_id: int
    chips: int
    environment: dict[str, str]
    labels: dict[str, str]


def host_specs(shape: SimulatedShape) -> tuple[HostSpec, ...]:
    """Every host, slice by slice; the first is the one on the head node."""
    slices = [part for part in shape.parts for _ in range(part.slices)]
    return tuple(
        _host_spec(part, slice_name=f"sim-{index}", worker_id=worker_id)
        for index, part in enumerate(slices)
        for worker_id in range(part.hosts)
    )


def _host_spec(shape: SimulatedShape, *, slice_name: str, worker_id: int) -> HostSpec:
    environment = {
        SIMULATED_VARIABLE: "1",
        "TPU_NAME": slice_name,
        "TPU_WORKER_ID": str(worker_id),
        "TPU_TOPOLOGY": shape.topology,
        "TPU_ACCELERATOR_TYPE": shape.pod_type,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={shape.devices_per_host}",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    return HostSpec(
        slice_name=slice_name,
        worker_id=worker_id,
        chips=shape.chips_per_host,
        environment=environment,
        labels={SIMULATED_LABEL: "true"},
    )
