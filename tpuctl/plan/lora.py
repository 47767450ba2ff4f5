"""The adapters of a recipe, to train or to serve: which projections have one, and whether the model can."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.adapters import ALL_LINEAR, FUSED_FAMILIES, TARGETS, targets_of, values_on_devices
from tpuctl.plan.here import Here
from tpuctl.plan.places import storage_place
from tpuctl.plan.source import ModelSource
from tpuctl.plan.weights_schema import LoraPlan, ServedAdapterPlan
from tpuctl.recipe.learning import LoraTable
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe, TrainingRecipe


def plan_lora(recipe: TrainingRecipe, *, source: ModelSource | None, here: Here, findings: Findings) -> LoraPlan | None:
    """The adapters to train, or None where all weights are; what is wrong stands in ``findings``."""
    table = recipe.lora
    if table.rank is None:
        if table != LoraTable() or "lora" in recipe.origin.lines:
            findings.refuse("lora.rank", "missing, and there is no adapter without one", "set rank = 16, say")
        return None
    if source is None:
        if recipe.model.source is None:
            hint = 'set model.source = "folder" in place of model.preset and sizes, or leave [lora] out'
            findings.refuse("model.source", "missing: adapters are trained beside the weights of a folder", hint)
        return None
    if source.family in FUSED_FAMILIES:
        message = f"{source.family} keeps several projections in one matrix; adapters beside those are not supported"
        findings.refuse("lora.targets", message, "leave [lora] out, or take a model of another family")
        return None
    adapter = table.adapter
    return LoraPlan(
        rank=table.rank,
        alpha=float(table.rank) if table.alpha is None else table.alpha,
        targets=_targets(table.targets, source.spec, findings),
        dropout=table.dropout,
        adapter=None if adapter is None else storage_place("lora.adapter", adapter, here=here, findings=findings),
    )


def plan_served_adapters(
    recipe: ServingRecipe, *, name: str, source: ModelSource | None, findings: Findings
) -> tuple[ServedAdapterPlan, ...]:
    """The adapters to serve beside a model that is called ``name``; what is wrong stands in ``findings``."""
    if not recipe.serve.adapters:
        return ()
    if source is None:
        if recipe.model.source is None:
            hint = "set model.source to the folder they were trained beside, or leave them out"
            findings.refuse("serve.adapters", "they stand beside the weights of a folder, and there is none", hint)
        return ()
    if source.family in FUSED_FAMILIES:
        message = f"{source.family} keeps several projections in one matrix; adapters beside those are not supported"
        findings.refuse("serve.adapters", message, "merge them into weights, and serve these")
    known = targets_of(source.spec)
    for adapter in source.adapters:
        key, unknown = f"serve.adapters.{adapter.name}", [name for name in adapter.lora.targets if name not in known]
        if adapter.name == name:
            findings.refuse(key, "is the name of the model itself", "give the adapter, or serve.name, another")
        if unknown or not adapter.lora.targets:
            message = f"stands beside {', '.join(unknown) or 'no projection'}: this model has {', '.join(known)}"
            findings.refuse(key, message, "name an adapter that was trained beside this model")
    return source.adapters


def adapter_values(spec: ModelSpec, loras: Sequence[LoraPlan], *, devices: int) -> int:
    """Numbers of served adapters on all devices of the slice: held as one of all ranks and all targets."""
    targets = tuple(target for target in TARGETS if any(target in lora.targets for lora in loras))
    rank = sum(lora.rank for lora in loras)
    return values_on_devices(spec, rank=rank, targets=targets, tensor=devices)


def _targets(wanted: tuple[str, ...], spec: ModelSpec, findings: Findings) -> tuple[str, ...]:
    """Each once and in the order of ``TARGETS``, so that the same adapters are the same plan."""
    known = targets_of(spec)
    if not wanted:
        findings.refuse("lora.targets", "empty: there would be nothing to train", f'set targets = ["{ALL_LINEAR}"]')
    for name in wanted:
        if name in known or name == ALL_LINEAR:
            continue
        if name in TARGETS:
            message, hint = f"{name}: the model has no such projection", f"it has {', '.join(known)}"
        else:
            close = difflib.get_close_matches(name, [*TARGETS, ALL_LINEAR], n=1)
            message = f"unknown target {name!r}"
            hint = f"did you mean {close[0]}?" if close else f"choose of {', '.join(TARGETS)}, or {ALL_LINEAR}"
        findings.refuse("lora.targets", message, hint)
    return known if ALL_LINEAR in wanted else tuple(name for name in known if name in wanted)
