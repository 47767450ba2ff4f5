"""Adapters as PEFT keeps them: ``adapter_config.json`` and ``adapter_model.safetensors``. Imports no jax.

PEFT's factors are ``lora_A`` [r, in] and ``lora_B`` [out, r] of every adapted linear layer; ours are stacked by layer
and have the rank first. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuctl.adapter_folder import CONFIG_FILE, WEIGHTS_FILE, AdapterFolder, open_adapter
from tpuctl.errors import WeightsError
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.adapters import TARGETS, adapter_parameters, adapter_path
from tpuctl.nn.naming import canonical_name, stored_parameters
from tpuctl.nn.weights_leaves import DTYPES
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.safetensors import Tensor, TensorFile, lay_out
from tpuctl.storage import join, open_storage

_PREFIX = "base_model.model."
_FACTORS = {"a": "lora_A", "b": "lora_B"}
_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapted:
    """A model and the adapters beside its projections; ``family`` is its ``model_type``."""

    spec: ModelSpec
    family: str
    lora: LoraPlan

    def factors(self) -> Iterator[tuple[str, int, str, tuple[int, ...]]]:
        """Of every stored factor: the path of ours, the place along its layers, PEFT's name, and our shape of it."""
        stored = stored_parameters(self.spec, self.family)
        known = adapter_parameters(self.spec, rank=self.lora.rank, targets=self.lora.targets)
        for target in self.lora.targets:
            weight = stored[f"layers/{TARGETS[target]}"]
            for (place, *_), name in weight.tensors():
                for ours, theirs in _FACTORS.items():
                    path = f"{adapter_path(target)}/{ours}"
                    module = name.removesuffix(".weight")
                    yield path, place, f"{_PREFIX}{module}.{theirs}.weight", known[path].shape


def write_adapter(adapted: Adapted, folder: str, *, base: str, read: Callable[[str], np.ndarray]) -> TensorFile:
    """Write adapters, in f32, as PEFT does.

    Args:
        adapted: What they are of.
        folder: Where to, local or ``gs://``.
        base: The model folder they belong to.
        read: Gives one of our factors by its path, stacked by layer.

    Returns:
        The file of weights.

    Raises:
        StorageError: the folder can't be written to.
    """
    factors = list(adapted.factors())
    shapes = {name: ("F32", _stored(shape, path)) for path, _, name, shape in factors}
    file = lay_out(join(folder, WEIGHTS_FILE), shapes)
    arrays = {path: read(path) for path in dict.fromkeys(path for path, *_ in factors)}
    data = [file.header, *(_to_stored(arrays[path][place], path).tobytes() for path, place, _, _ in factors)]
    open_storage(file.uri).write(file.uri, b"".join(data))
    config = join(folder, CONFIG_FILE)
    open_storage(config).write(config, (json.dumps(_config(adapted.lora, base), indent=2) + "\n").encode())
    return file


def fit_adapter(adapted: Adapted, folder: str) -> dict[str, Tensor]:
    """The tensors of an adapter by PEFT's names, from its config and header, held against what is wanted.

    Raises:
        WeightsError: it is none, of another rank, scale or shape, or has other targets.
        StorageError: it can't be read.
    """
    opened = open_adapter(folder)
    _check_sizes(opened, adapted.lora)
    found = {_canonical(name, adapted.family): tensor for name, tensor in opened.tensors.items()}
    wanted = {name: _stored(shape, path) for path, _, name, shape in adapted.factors()}
    problems = {
        "missing": [name for name in wanted if name not in found],
        "not of these targets": [name for name in found if name not in wanted],
        "of another shape or dtype": [
            str(found[name])
            for name, shape in wanted.items()
            if name in found and (found[name].shape != shape or found[name].dtype not in DTYPES)
        ],
    }
    parts = [f"{len(names)} tensors {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if parts:
        file = join(folder, WEIGHTS_FILE)
        beside = f"beside {', '.join(adapted.lora.targets)} of a {adapted.family} of width {adapted.spec.hidden_size}"
        hint = "the model must be the one it was trained beside, and lora.targets, where they are set, the adapter's"
        raise WeightsError(f"{file} is no adapter {beside}; {'; '.join(parts)}", hint=hint)
    return found


def read_adapter(adapted: Adapted, folder: str) -> dict[str, np.ndarray]:
    """Our factors by path, f32; raises as ``fit_adapter`` does."""
    found = fit_adapter(adapted, folder)
    known = adapter_parameters(adapted.spec, rank=adapted.lora.rank, targets=adapted.lora.targets)
    arrays = {path: np.empty(parameter.stacked_shape, np.float32) for path, parameter in known.items()}
    # Whole, as it is small: then a bucket's checksum holds for it.
    file = join(folder, WEIGHTS_FILE)
    whole = open_storage(file).read(file).data
    for path, place, name, shape in adapted.factors():
        tensor = found[name]
        data = whole[tensor.start : tensor.end]
        values = np.frombuffer(data, DTYPES[tensor.dtype]).reshape(tensor.shape).astype(np.float32)
        if not np.isfinite(values).all():
            raise WeightsError(
                f"{file}: {tensor.name} has values that are not finite", hint="did its training diverge?"
            )
        arrays[path][place] = (values.T if path.endswith("/b") else values).reshape(shape)
    return arrays


def _stored(shape: tuple[int, ...], path: str) -> tuple[int, int]:
    rank, features = shape[0], int(np.prod(shape[1:]))
    return (features, rank) if path.endswith("/b") else (rank, features)


def _to_stored(factor: np.ndarray, path: str) -> np.ndarray:
    flat = factor.reshape(factor.shape[0], -1).astype(np.float32)
    return np.ascontiguousarray(flat.T) if path.endswith("/b") else flat


def _canonical(name: str, family: str) -> str:
    return _PREFIX + canonical_name(name.removeprefix(_PREFIX), family)


def _config(lora: LoraPlan, base: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def _check_sizes(found: AdapterFolder, lora: LoraPlan) -> None:
    differing = [
        f"lora.{ours} = {wanted:g} in the recipe, {theirs} = {has:g} in the adapter"
        for ours, wanted, theirs, has in (
            ("rank", lora.rank, "r", found.rank),
            ("alpha", lora.alpha, "lora_alpha", found.alpha),
        )
        if has != wanted
    ]
    if differing:
        raise WeightsError(f"{found.uri} is another adapter: {'; '.join(differing)}", hint="write the adapter's")


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
