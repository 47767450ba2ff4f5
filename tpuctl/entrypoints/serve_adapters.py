"""The LoRA adapters of an endpoint on their way to its devices: exported where they are a run's, held against the
model, laid side by side."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from tpuctl.engine.adapters import Adapters, side_by_side
from tpuctl.entrypoints.local_model import LocalModel
from tpuctl.entrypoints.serve_checkpoint import run_export
from tpuctl.errors import WeightsError
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.nn.params import ParamTree, param_shardings, split_adapters
from tpuctl.nn.peft import Adapted, read_adapter
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.weights_schema import ServedAdapterPlan
from tpuctl.storage import join


def held_adapters(plan: ServingPlan) -> Adapters | None:
    """What the engine knows of a plan's adapters; None where there are none."""
    if not plan.adapters:
        return None
    loras = [adapter.lora for adapter in plan.adapters]
    return Adapters(
        names=tuple(adapter.name for adapter in plan.adapters),
        ranks=tuple(lora.rank for lora in loras),
        targets=tuple(target for target in TARGETS if any(target in lora.targets for lora in loras)),
    )


@contextmanager
def exported_adapters(plan: ServingPlan, *, tell: Callable[..., None]) -> Iterator[ServingPlan]:
    """The plan with PEFT's folders in place of runs; they are gone after the block.

    Raises:
        WeightsError: a run has no such checkpoint, it can't be read, or it was trained beside other weights.
    """
    if not any(adapter.is_run for adapter in plan.adapters):
        yield plan
        return
    with tempfile.TemporaryDirectory(prefix="tpuctl-adapters-") as directory:
        found = [
            _exported(plan, adapter, join(directory, str(number)), tell=tell) if adapter.is_run else adapter
            for number, adapter in enumerate(plan.adapters)
        ]
        yield replace(plan, adapters=tuple(found))


def load_adapters(model: LocalModel, adapters: Adapters, mesh: Mesh, *, tell: Callable[..., None]) -> ParamTree:
    """The factors of all adapters of a model as those of one, on the devices, where the model has its adapters.

    Every host of the mesh calls this.

    Raises:
        WeightsError: one does not fit the model, or is damaged.
        StorageError: it can't be read.
    """
    started = time.monotonic()
    each = [(adapter.lora, _factors(model, adapter)) for adapter in model.adapters]
    arrays = side_by_side(model.spec, adapters, each)
    dtype = jnp.dtype(model.dtype)

    def placed(path: Any, place: NamedSharding) -> Array:
        values = arrays[jax.tree_util.keystr(path, simple=True, separator="/")].astype(dtype)
        return jax.make_array_from_callback(values.shape, place, lambda index: values[index])

    places, _ = split_adapters(param_shardings(model.spec, mesh, lora=adapters.lora))
    tree: ParamTree = jax.tree_util.tree_map_with_path(placed, places)
    listed = ", ".join(f"{adapter.name} (rank {adapter.lora.rank})" for adapter in model.adapters)
    tell("adapters", seconds=time.monotonic() - started, detail=listed)
    return tree


def _exported(
    plan: ServingPlan, adapter: ServedAdapterPlan, folder: str, *, tell: Callable[..., None]
) -> ServedAdapterPlan:
    started = time.monotonic()
    request = {"run": adapter.uri, "step": adapter.step, "folder": folder, "dtype": "float32", "format": "peft"}
    exported = run_export(request | {"beside": plan.weights and plan.weights.uri})
    detail = f"adapter {adapter.name}: step {exported['step']} of {adapter.uri}"
    tell("exported", seconds=time.monotonic() - started, detail=detail)
    return replace(adapter, uri=folder, is_run=False, step=None)


def _factors(model: LocalModel, adapter: ServedAdapterPlan) -> dict[str, np.ndarray]:
    assert model.weights is not None, "a plan has adapters beside a model's own weights only"
    try:
        return read_adapter(Adapted(spec=model.spec, family=model.weights.family, lora=adapter.lora), adapter.uri)
    except WeightsError as error:
        raise WeightsError(f"adapter {adapter.name}: {error.message}", hint=error.hint) from error
