"""The device mesh of a plan: axes given or chosen, so that devices, batch and model all divide.

Weights are split over ``fsdp``, ``expert`` and ``data`` along the hidden size and over ``tensor`` along heads, MLP and
vocabulary, experts over ``expert`` by their number; the batch over every axis but ``tensor``, the sequence over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.modelspec import ModelSpec
from tpuctl.plan.schema import MeshPlan, SlicePlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import TrainingRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class _Misfit:
    key: str
    message: str
    hint: str


def plan_mesh(recipe: TrainingRecipe, slices: SlicePlan, model: ModelSpec, *, findings: Findings) -> MeshPlan | None:
    """The mesh with the shortest ``tensor`` axis on which everything divides, or None and why in ``findings``."""
    table = recipe.mesh
    if table.slice not in (0, slices.slices):
        hint = f"leave it out, or write {slices.slices}"
        findings.refuse("mesh.slice", f"{table.slice} is not the number of slices, {slices.slices}", hint)
        return None
    candidates = list(_candidates(recipe, slices))
    if not candidates:
        findings.refuse(*_no_product(recipe, slices))
        return None
    for mesh in candidates:
        if not _misfits(recipe, mesh, model):
            if mesh != candidates[0] and not table.tensor:
                why = _misfits(recipe, candidates[0], model)[0].message
                findings.notes.append(f"mesh.tensor = {mesh.tensor} was chosen: with a shorter one, {why}")
            return mesh
    for misfit in _misfits(recipe, candidates[0], model):
        findings.refuse(misfit.key, misfit.message, misfit.hint)
    return None


def _candidates(recipe: TrainingRecipe, slices: SlicePlan) -> Iterator[MeshPlan]:
    """Every mesh that agrees with the axes given, the plainest first."""
    table = recipe.mesh
    expert = table.expert or 1
    devices, rest = divmod(slices.total_devices // slices.slices, expert)
    if rest:
        return
    for tensor in [table.tensor] if table.tensor else _divisors(devices):
        for data in [table.data] if table.data else [1] if not table.fsdp else _divisors(devices):
            fsdp, rest = divmod(devices, tensor * data)
            if not rest and fsdp and table.fsdp in (0, fsdp):
                yield MeshPlan(slice=slices.slices, data=data, fsdp=fsdp, expert=expert, tensor=tensor)


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def _no_product(recipe: TrainingRecipe, slices: SlicePlan) -> tuple[str, str, str]:
    given = {axis: length for axis in ("data", "fsdp", "expert", "tensor") if (length := getattr(recipe.mesh, axis))}
    devices = slices.total_devices // slices.slices
    axes = " × ".join(f"{axis} {length}" for axis, length in given.items())
    message = f"{axes} does not make the {devices} devices of a slice"
    hint = "the product of data, fsdp, expert and tensor is the devices of one slice"
    return f"mesh.{next(iter(given))}", message, hint


def _misfits(recipe: TrainingRecipe, mesh: MeshPlan, model: ModelSpec) -> list[_Misfit]:
    found = [_batch_misfit(recipe, mesh), _expert_misfit(mesh, model), _hidden_misfit(mesh, model)]
    found += _tensor_misfits(recipe, mesh, model)
    return [misfit for misfit in found if misfit is not None]


def _batch_misfit(recipe: TrainingRecipe, mesh: MeshPlan) -> _Misfit | None:
    train = recipe.train
    parts = mesh.batch_shards * train.microbatches
    if train.global_batch % parts == 0:
        return None
    below = train.global_batch // parts * parts
    nearest = f"{below} or {below + parts}" if below else f"{parts}"
    by = f"{mesh.batch_shards} batch shards" + (
        f" × {train.microbatches} microbatches" if train.microbatches > 1 else ""
    )
    return _Misfit(
        key="train.global_batch",
        message=f"{train.global_batch} sequences do not divide into {by}",
        hint=f"use {nearest}, or change [mesh] or microbatches",
    )


def _expert_misfit(mesh: MeshPlan, model: ModelSpec) -> _Misfit | None:
    if mesh.expert == 1:
        return None
    if model.experts is None:
        message = f"{mesh.expert}, and the model has no experts to deal out"
        return _Misfit(key="mesh.expert", message=message, hint="leave it out, or use mesh.fsdp")
    count = model.experts.num_experts
    if count % mesh.expert == 0:
        return None
    message = f"expert {mesh.expert} does not divide the {count} experts of a layer"
    return _Misfit(key="mesh.expert", message=message, hint=f"use a divisor of {count}")


def _hidden_misfit(mesh: MeshPlan, model: ModelSpec) -> _Misfit | None:
    lengths = {axis: getattr(mesh, axis) for axis in ("fsdp", "expert", "data")}
    if model.hidden_size % math.prod(lengths.values()) == 0:
        return None
    parts = " × ".join(f"{axis} {length}" for axis, length in lengths.items() if axis != "expert" or length > 1)
    return _Misfit(
        key="mesh.fsdp",
        message=f"hidden_size {model.hidden_size} does not divide into {parts} parts",
        hint="use a larger tensor axis, a smaller slice, or another hidden_size",
    )


def _tensor_misfits(recipe: TrainingRecipe, mesh: MeshPlan, model: ModelSpec) -> Iterator[_Misfit]:
    length = recipe.train.sequence_length
    if length % mesh.tensor:
        message = f"tensor {mesh.tensor} does not divide sequence_length {length}"
        yield _Misfit(key="mesh.tensor", message=message, hint=f"use a divisor of {length}")
    for message, hint in undivided(model, tensor=mesh.tensor):
        yield _Misfit(key="mesh.tensor", message=message, hint=hint)


def undivided(model: ModelSpec, *, tensor: int) -> Iterator[tuple[str, str]]:
    """What of a model does not divide over so many devices, and which numbers of them would do."""
    sizes = {"num_heads": model.num_heads, "vocab_size": model.vocab_size}
    if model.mlp_layers:
        sizes["mlp_size"] = model.mlp_size
    if model.experts is not None:
        sizes["mlp_size of each expert,"] = model.experts.mlp_size
    for name, size in sizes.items():
        if size % tensor:
            yield f"tensor {tensor} does not divide {name} {size}", f"use a divisor of {size}"
    # Devices more numerous than key heads share them, so many to each.
    if model.num_kv_heads % tensor and tensor % model.num_kv_heads:
        message = f"tensor {tensor} neither divides num_kv_heads {model.num_kv_heads} nor is a multiple of it"
        yield message, f"use a divisor or a multiple of {model.num_kv_heads}"
