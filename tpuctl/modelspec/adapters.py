"""Low-rank adapters (LoRA) as shapes: which projections may have one, by PEFT's names, and what it consists of.

An adapter of rank r adds ``scale · B A x`` to a projection of x (Hu et al. 2021). Both factors are kept with the rank
first: A as ``[r, *inside]``, B as ``[r, *outside]``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.modelspec.layout import Parameter, parameters
from tpuctl.modelspec.spec import ModelSpec

TARGETS = {
    "q_proj": "attention/query",
    "k_proj": "attention/key",
    "v_proj": "attention/value",
    "o_proj": "attention/out",
    "gate_proj": "mlp/gate",
    "up_proj": "mlp/up",
    "down_proj": "mlp/down",
}
"""PEFT's name of a projection, and our path of its weight within a layer."""

BACK = frozenset({"o_proj", "down_proj"})
"""Those that lead back to the residual stream; the others lead from it."""

FUSED_FAMILIES = frozenset({"gpt2", "phi3"})
"""Families that store several projections as one matrix, so that there is none of these names."""

ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer but the output head."""


def targets_of(spec: ModelSpec) -> tuple[str, ...]:
    """The projections of a model that may have adapters; routed experts are none."""
    known = parameters(spec)
    return tuple(target for target, path in TARGETS.items() if f"layers/{path}" in known)


def adapter_path(target: str) -> str:
    """Where the adapter of a projection stands in the tree of parameters; its factors are ``a`` and ``b`` below."""
    group, name = TARGETS[target].split("/")
    return f"layers/{group}/adapters/{name}"


def adapter_parameters(spec: ModelSpec, *, rank: int, targets: Sequence[str]) -> dict[str, Parameter]:
    """The factors of all adapters by path, as ``layout.parameters`` tells of the model's weights."""
    known = parameters(spec)
    found: dict[str, Parameter] = {}
    for target in targets:
        weight = known[f"layers/{TARGETS[target]}"]
        residual, other = weight.shape[:1], weight.shape[1:]
        inside, outside = (other, residual) if target in BACK else (residual, other)
        path = adapter_path(target)
        found[f"{path}/a"] = Parameter(shape=(rank, *inside), layers=weight.layers)
        found[f"{path}/b"] = Parameter(shape=(rank, *outside), layers=weight.layers)
    return found


def values_on_devices(spec: ModelSpec, *, rank: int, targets: Sequence[str], tensor: int) -> int:
    """Numbers that ``tensor`` devices hold together of adapters: each has whole the factor on the residual stream's
    side, and its part of the other one."""
    known = adapter_parameters(spec, rank=rank, targets=targets)
    total = 0
    for target in targets:
        a, b = (known[f"{adapter_path(target)}/{factor}"].size for factor in ("a", "b"))
        whole, split = (b, a) if target in BACK else (a, b)
        # Fewer key heads than devices are held by several.
        held = max(spec.num_kv_heads, tensor) // spec.num_kv_heads if target in ("k_proj", "v_proj") else 1
        total += tensor * whole + held * split
    return total
