"""The names people give to TPUs, read into (generation, size, topology, machine) or refused with the nearest ones.

A size is ambiguous by nature: ``v4-16`` counts TensorCores (8 chips), ``v6e-16`` counts chips. Whatever is
translated here is said in ``notes``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tpuctl.errors import TopologyError
from tpuctl.topology.table import Generation, Machine, generations

_SIZED = re.compile(r"(?P<base>.+?)-(?:(?P<size>\d+)|(?P<topology>\d+(?:x\d+){1,2}))")


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorName:
    """What a name said: a generation for certain, the rest if it was in the name."""

    text: str
    generation: Generation
    chips: int | None = None
    topology: str | None = None
    machine: Machine | None = None
    notes: tuple[str, ...] = ()


def parse_accelerator(text: str) -> AcceleratorName:
    """What an accelerator name means.

    Raises:
        TopologyError: no such name, or one that fits several generations; the message has the nearest names.
    """
    by_kind = _by_device_kind(text)
    if by_kind is not None:
        note = f"accelerator {text!r} is JAX's name of {by_kind.name}"
        return AcceleratorName(text=text, generation=by_kind, notes=(note,) if "lite" not in text.lower() else ())
    name = _normalised(text)
    machine = _machine(name)
    if machine is not None:
        return AcceleratorName(text=text, generation=machine[0], machine=machine[1])
    plain = _by_alias(name)
    if plain is not None:
        return AcceleratorName(text=text, generation=plain)
    sized = _SIZED.fullmatch(name)
    found = _by_alias(sized["base"]) if sized else None
    if sized is None or found is None:
        raise _unknown(text, name)
    if sized["topology"]:
        return AcceleratorName(text=text, generation=found, topology=sized["topology"])
    return _with_size(text, found, int(sized["size"]))


def pod_type(generation: Generation, chips: int) -> str:
    """Ray's pod type: ``v6e-16`` counts chips, ``v4-16`` TensorCores."""
    return f"{generation.pod_prefix}-{chips * generation.cores_per_chip}"


def _normalised(text: str) -> str:
    name = re.sub(r"[\s_:=]+", "-", text.strip().lower().replace("×", "x"))
    return name.removeprefix("tpu-")


def _by_device_kind(text: str) -> Generation | None:
    # "TPU v5" (with a space) is what JAX calls a v5p; "tpu-v5" typed by hand could be v5p or v5e and is refused.
    kind = " ".join(text.lower().split())
    return next((g for g in generations() if " " in kind and g.device_kind.lower() == kind), None)


def _machine(name: str) -> tuple[Generation, Machine] | None:
    for generation in generations():
        for machine in generation.machines:
            # "tpu7x-standard-4t" lost nothing to normalising, "tpu-vm" (v2, v3) is no name of its own
            if machine.name == name:
                return generation, machine
    return None


def _by_alias(name: str) -> Generation | None:
    return next((g for g in generations() if name in g.aliases), None)


def _with_size(text: str, generation: Generation, size: int) -> AcceleratorName:
    cores = generation.cores_per_chip
    chips = size // cores
    if size % cores or chips not in generation.chip_counts:
        raise _no_such_size(text, generation, size)
    notes = () if cores == 1 else (f"{text} counts TensorCores, {cores} to a chip: {chips} chips",)
    return AcceleratorName(text=text, generation=generation, chips=chips, notes=notes)


def _no_such_size(text: str, generation: Generation, size: int) -> TopologyError:
    cores = generation.cores_per_chip
    counted = (
        f"{size} chips" if cores == 1 else f"{size} TensorCores ({size / cores:g} chip{'' if size == cores else 's'})"
    )
    if size in {machine.chips * cores for machine in generation.machines}:
        smallest = pod_type(generation, min(generation.chip_counts))
        return TopologyError(
            f"accelerator {text!r} is a TPU VM that is smaller than any {generation.name} slice Ray can reserve",
            hint=f"the smallest such slice is {smallest}",
        )
    nearest = sorted(generation.chip_counts, key=lambda chips: abs(chips * cores - size))[:6]
    sizes = ", ".join(pod_type(generation, chips) for chips in sorted(nearest))
    return TopologyError(
        f"accelerator {text!r}: no {generation.name} slice has {counted}", hint=f"nearest sizes: {sizes}"
    )


def _unknown(text: str, name: str) -> TopologyError:
    base, _, suffix = name.rpartition("-")
    if not base or not suffix.isdigit():
        base, suffix = name, ""
    near = _near_names(base)
    if near:
        choices = " or ".join(f"{near_name}-{suffix}" if suffix else near_name for near_name in near)
        return TopologyError(f"unknown accelerator {text!r}", hint=f"did you mean {choices}?")
    known = ", ".join(g.name for g in generations())
    return TopologyError(f"unknown accelerator {text!r}", hint=f"generations: {known}; `tpuctl slices` lists them all")


def _near_names(base: str) -> list[str]:
    """Names a typo may have meant: one per generation, as its cloud spells it."""
    starts = [g for g in generations() if any(alias.startswith(base) for alias in g.aliases)]
    if not starts or len(base) < 2:
        close = difflib.get_close_matches(base, [a for g in generations() for a in g.aliases], n=3, cutoff=0.6)
        starts = [g for g in generations() if any(alias in close for alias in g.aliases)]
    return ["tpu7x" if g.name == "tpu7x" else g.pod_prefix for g in starts]
