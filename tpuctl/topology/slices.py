"""From an accelerator name and a topology to one exact slice, saying aloud whatever was chosen or translated."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tpuctl.errors import TopologyError
from tpuctl.topology.names import AcceleratorName, parse_accelerator, pod_type
from tpuctl.topology.table import Generation, Machine, chips_of, in_order, parse_dims

_SHAPE = re.compile(r"\d+(x\d+)+")
_HOST_BOUNDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
_LISTED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceShape:
    """One slice, exactly: the chips, the hosts they sit in and the names others have for it."""

    generation: Generation
    topology: str
    machine: str
    chips_per_host: int

    @property
    def chips(self) -> int:
        """Chips in the slice."""
        return chips_of(self.topology)

    @property
    def hosts(self) -> int:
        """Hosts: TPU VMs, which are Ray nodes and JAX processes."""
        return self.chips // self.chips_per_host

    @property
    def devices(self) -> int:
        """JAX devices in the slice."""
        return self.chips * self.generation.devices_per_chip

    @property
    def devices_per_host(self) -> int:
        """JAX devices one process sees."""
        return self.chips_per_host * self.generation.devices_per_chip

    @property
    def pod_type(self) -> str:
        """Ray's pod type, the ``ray.io/tpu-pod-type`` label."""
        return pod_type(self.generation, self.chips)

    @property
    def accelerator_type(self) -> str:
        """Ray's accelerator type, e.g. ``TPU-V6E``."""
        return self.generation.accelerator_type

    @property
    def libtpu_topology(self) -> str:
        """The name libtpu compiles ahead of time for."""
        return f"{self.generation.name}:{self.topology}"

    @property
    def chips_per_host_bounds(self) -> tuple[int, int, int]:
        """How one host's chips lie in the mesh, as libtpu wants it."""
        return _HOST_BOUNDS[self.chips_per_host]

    @property
    def wrap(self) -> tuple[bool, bool, bool]:
        """Which axes are tori on GKE: every axis of a cube, or on 2-D chips an axis of 16."""
        dims = parse_dims(self.topology)
        if self.generation.wrap_rule == "all_from_4":
            closed = all(dim >= 4 for dim in dims)
            return (closed, closed, closed)
        only_16 = self.generation.wrap_rule == "only_16"
        return (only_16 and dims[0] == 16, only_16 and dims[1] == 16, False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """A slice and what has to be said about how it was chosen."""

    shape: SliceShape
    notes: tuple[str, ...]


def resolve_slice(accelerator: str, topology: str | None = None, *, chips_per_host: int | None = None) -> Resolution:
    """The one slice that a name, a topology and a host size mean.

    Args:
        accelerator: Any spelling in use: ``v6e``, ``TPU-V6E``, ``v6e-16``, ``tpu-v6e-slice``, ``ct6e-standard-4t``…
        topology: The shape in chips, e.g. ``4x4``; may be left out where the name alone gives it.
        chips_per_host: Needed only where a shape is built of several machines (v5e and v6e 2x4).

    Raises:
        TopologyError: unknown or ambiguous name, no such shape, or parts that contradict each other. The hint
            lists the choices.
    """
    name = parse_accelerator(accelerator)
    shape_text, notes = _topology(name, topology)
    machine, machine_notes = _choose_machine(name, shape_text, chips_per_host)
    shape = SliceShape(
        generation=name.generation, topology=shape_text, machine=machine.name, chips_per_host=machine.chips
    )
    return Resolution(shape=shape, notes=(*name.notes, *notes, *machine_notes))


def shapes(generation: Generation) -> tuple[SliceShape, ...]:
    """Every slice of a generation, smallest first; a topology built of two machines comes twice."""
    return tuple(
        SliceShape(generation=generation, topology=topology, machine=machine.name, chips_per_host=machine.chips)
        for topology in generation.topologies
        for machine in generation.machines_for(topology)
    )


def _topology(name: AcceleratorName, asked: str | None) -> tuple[str, tuple[str, ...]]:
    if name.topology is not None:
        named = _legal(name.generation, name.topology)
        if asked is not None and _legal(name.generation, asked) != named:
            raise TopologyError(f"accelerator {name.text!r} and topology {asked!r} contradict each other")
        return named, ()
    if asked is None:
        return _from_name_alone(name)
    legal = _legal(name.generation, asked)
    if name.chips is not None and chips_of(legal) != name.chips:
        raise _size_mismatch(name, legal)
    return legal, ()


def _legal(generation: Generation, text: str) -> str:
    """The topology in the table's spelling."""
    compact = re.sub(r"\s+", "", text.lower().replace("×", "x").replace("*", "x"))
    if not _SHAPE.fullmatch(compact):
        raise _not_a_shape(generation, text, compact)
    topology = "x".join(str(dim) for dim in parse_dims(compact))
    if topology not in generation.topologies:
        raise _no_such_shape(generation, topology)
    return topology


def _not_a_shape(generation: Generation, text: str, compact: str) -> TopologyError:
    example = generation.canonical_topologies[-1]
    same = [t for t in generation.canonical_topologies if compact.isdecimal() and chips_of(t) == int(compact)]
    hint = f"{compact} chips of {generation.name}: {' or '.join(same)}" if same else f"write it as e.g. {example}"
    return TopologyError(f"topology {text!r} is not a shape in chips", hint=hint)


def _no_such_shape(generation: Generation, topology: str) -> TopologyError:
    dims = parse_dims(topology)
    message = f"{generation.name} has no topology {topology}"
    if len(dims) != generation.dims:
        message += f": its slices have {generation.dims} dimensions, this has {len(dims)}"
    elif _exists_beyond_ray(generation, topology):
        message = f"{topology} is a {generation.name} slice, but Ray's slice reservation does not know it"
    remedy = f"write {in_order(topology)}; " if in_order(topology) in generation.topologies else ""
    return TopologyError(message, hint=remedy + _listing(generation, chips=math.prod(dims)))


def _exists_beyond_ray(generation: Generation, topology: str) -> bool:
    dims = parse_dims(topology)
    is_cubes = topology == in_order(topology) and all(dim and dim % 4 == 0 for dim in dims)
    return topology in generation.known_elsewhere or (is_cubes and math.prod(dims) // 64 <= generation.max_cubes)


def _listing(generation: Generation, *, chips: int) -> str:
    """The valid topologies: all of a short list, else the nearest in size."""
    known = generation.canonical_topologies
    if len(known) <= _LISTED + 2:
        return f"topologies of {generation.name}: {', '.join(known)}"
    nearest = sorted(known, key=lambda topology: abs(math.log(chips_of(topology) / max(chips, 1))))[:_LISTED]
    rest = len(known) - len(nearest)
    return (
        f"nearest topologies of {generation.name}: {', '.join(nearest)} "
        f"(and {rest} more: tpuctl slices {generation.name})"
    )


def _from_name_alone(name: AcceleratorName) -> tuple[str, tuple[str, ...]]:
    """The topology where the name leaves no choice."""
    fitting = name.machine.topologies if name.machine else name.generation.canonical_topologies
    if name.chips is not None:
        fitting = tuple(topology for topology in fitting if chips_of(topology) == name.chips)
    if len(fitting) == 1:
        chips = chips_of(fitting[0])
        return fitting[0], (f"{name.text} means topology {fitting[0]} ({_count(chips, 'chip')})",)
    if name.chips is not None:
        raise TopologyError(
            f"accelerator {name.text!r} fits several topologies: {', '.join(fitting)}",
            hint=f"choose one, e.g. topology = {fitting[0]!r}",
        )
    if not fitting:
        raise TopologyError(
            f"Ray's slice reservation knows no slice of {name.text}", hint=_listing(name.generation, chips=1)
        )
    raise TopologyError(f"accelerator {name.text!r} needs a topology", hint=_choices_of(name, fitting))


def _choices_of(name: AcceleratorName, fitting: tuple[str, ...]) -> str:
    if name.machine is not None:
        return f"topologies on {name.machine.name}: {', '.join(fitting[: _LISTED + 2])}"
    return f"{_listing(name.generation, chips=4)}; or name the size: {pod_type(name.generation, 16)} is 16 chips"


def _size_mismatch(name: AcceleratorName, topology: str) -> TopologyError:
    chips = chips_of(topology)
    counted = "" if name.generation.cores_per_chip == 1 else " (the name counts TensorCores)"
    return TopologyError(
        f"accelerator {name.text!r} is {name.chips} chips{counted} but topology {topology} is {chips}",
        hint=f"{topology} is {pod_type(name.generation, chips)}; or leave the size out of the name",
    )


def _choose_machine(
    name: AcceleratorName, topology: str, chips_per_host: int | None
) -> tuple[Machine, tuple[str, ...]]:
    every = name.generation.machines_for(topology)
    fitting = [m for m in every if chips_per_host in (None, m.chips) and name.machine in (None, m)]
    if not fitting:
        raise _no_such_host(name, topology, chips_per_host)
    taken = fitting[0]
    others = {m.chips: m for m in fitting if m.chips != taken.chips}
    return taken, tuple(_choice_note(name, topology, taken, other) for other in others.values())


def _choice_note(name: AcceleratorName, topology: str, taken: Machine, other: Machine) -> str:
    return (
        f"{name.generation.name} {topology} is taken as {_hosts(topology, taken)}; "
        f"set slice.chips_per_host = {other.chips} for {_hosts(topology, other)}"
    )


def _hosts(topology: str, machine: Machine) -> str:
    count = chips_of(topology) // machine.chips
    return f"{_count(count, 'host')} × {_count(machine.chips, 'chip')} ({machine.name})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _no_such_host(name: AcceleratorName, topology: str, chips_per_host: int | None) -> TopologyError:
    every = name.generation.machines_for(topology)
    asked = [f"chips_per_host = {chips_per_host}"] if chips_per_host is not None else []
    asked += [f"machine {name.machine.name}"] if name.machine is not None else []
    choices = " or ".join(dict.fromkeys(_hosts(topology, machine) for machine in every))
    return TopologyError(
        f"{name.generation.name} {topology} does not go with {' and '.join(asked)}", hint=f"it is built of {choices}"
    )
