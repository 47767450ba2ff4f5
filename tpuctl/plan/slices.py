"""The slices of a plan: what the table of topologies makes of a recipe's words."""

from __future__ import annotations

from tpuctl.errors import TopologyError
from tpuctl.plan.schema import SlicePlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import Recipe
from tpuctl.topology import SliceShape, resolve_slice


def plan_slices(recipe: Recipe, *, findings: Findings) -> SlicePlan | None:
    """The slices a recipe asks for, or None and why not in ``findings``."""
    table = recipe.slice
    try:
        found = resolve_slice(table.accelerator, table.topology, chips_per_host=table.chips_per_host)
    except TopologyError as error:
        key = "accelerator" if "accelerator" in error.message or table.topology is None else "topology"
        key = "chips_per_host" if "chips_per_host" in error.message else key
        findings.refuse(f"slice.{key}", error.message, error.hint)
        return None
    findings.notes.extend(found.notes)
    return slice_plan(found.shape, slices=table.slices)


def slice_plan(shape: SliceShape, *, slices: int = 1) -> SlicePlan:
    """A slice of the table as part of a plan."""
    return SlicePlan(
        generation=shape.generation.name,
        accelerator_type=shape.accelerator_type,
        pod_type=shape.pod_type,
        topology=shape.topology,
        machine=shape.machine,
        slices=slices,
        hosts=shape.hosts,
        chips=shape.chips,
        chips_per_host=shape.chips_per_host,
        devices_per_chip=shape.generation.devices_per_chip,
    )
