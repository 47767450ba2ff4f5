"""The rotary embedding of a Hugging Face config, in both of its spellings.

Transformers 5 writes ``rope_parameters``; 4, and with it most published checkpoints, ``rope_theta`` beside
``rope_scaling``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tpuctl.modelspec.config import Config, ModelConfigError
from tpuctl.modelspec.spec import RopeSpec
from tpuctl.modelspec.values import as_flag, as_number, as_size, as_table, as_word, shown

_NEEDED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
_YARN = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "truncate",
)


def take_rope(config: Config, *, default_theta: float = 10_000.0) -> dict[str, Any]:
    """The fields ``rope_theta`` and ``rope`` of a spec.

    Raises:
        ModelConfigError: a scaling that the decoder does not have, or one without a number it needs.
    """
    config.require("partial_rotary_factor", 1.0, why="rotary embedding of a part of each head is not supported")
    theta, scaling = config.take_number("rope_theta", default_theta), config.take_table("rope_scaling")
    given = config.take_table("rope_parameters")
    if given and scaling:
        raise ModelConfigError("the model's config has both rope_parameters and rope_scaling")
    chosen = given or scaling
    theta = _take_theta(chosen, theta)
    return {"rope_theta": theta, "rope": _rope(chosen, max_positions=_positions(config))}


def take_layered_rope(config: Config, *, default_theta: float, default_local_theta: float) -> dict[str, Any]:
    """The same with ``local_rope_theta``, for a family whose local layers have a base of their own.

    Raises:
        ModelConfigError: as ``take_rope``; also where the local layers are scaled.
    """
    local_theta = config.take_number("rope_local_base_freq", default_local_theta)
    given = config.take_table("rope_parameters")
    by_kind = {"full_attention", "sliding_attention"}
    if given and not given.keys() <= by_kind:
        raise ModelConfigError(f"rope_parameters of {', '.join(sorted(given))}: expected {', '.join(sorted(by_kind))}")
    local = as_table("rope_parameters.sliding_attention", given.get("sliding_attention") or {})
    local_theta = _take_theta(local, local_theta)
    if _rope(local, max_positions=0) != RopeSpec():
        raise ModelConfigError("rope_parameters.sliding_attention: scaling of the local layers is not supported")
    scaling = config.take_table("rope_scaling")
    whole = as_table("rope_parameters.full_attention", given.get("full_attention") or scaling)
    theta = _take_theta(whole, config.take_number("rope_theta", default_theta))
    rope = _rope(whole, max_positions=_positions(config))
    return {"rope_theta": theta, "rope": rope, "local_rope_theta": local_theta}


def rope_scaling(rope: RopeSpec) -> dict[str, Any] | None:
    """The ``rope_scaling`` that ``take_rope`` reads as this spec."""
    if rope.scaling == "none":
        return None
    written: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "llama3":
        written |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.scaling == "yarn":
        written |= {name: getattr(rope, name) for name in ("attention_factor", "beta_fast", "beta_slow", "truncate")}
    if rope.scaling != "linear":
        written["original_max_position_embeddings"] = rope.original_max_positions
    return written


def _positions(config: Config) -> int:
    return int(config.take_size("max_position_embeddings", 0, least=0))


def _take_theta(table: dict[str, Any], theta: float) -> float:
    own = table.pop("rope_theta", None)
    return theta if own is None else as_number("rope_theta", own, above=0.0)


def _rope(given: Mapping[str, Any], *, max_positions: int) -> RopeSpec:
    values = {key: value for key, value in given.items() if value is not None}
    kind = as_word("rope_type", values.pop("rope_type", None) or values.get("type", "default"))
    values.pop("type", None)
    if values.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ModelConfigError("partial_rotary_factor: rotary embedding of a part of each head is not supported")
    if kind == "default":
        _refuse_rest(kind, values, known=())
        return RopeSpec()
    if kind not in _NEEDED:
        raise ModelConfigError(
            f"rope scaling {shown(kind)} is not supported", hint=f"known: default, {', '.join(_NEEDED)}"
        )
    if kind == "yarn":
        values.setdefault("original_max_position_embeddings", max_positions)
        original = as_size("original_max_position_embeddings", values["original_max_position_embeddings"])
        values.setdefault("factor", max_positions / original)
    if missing := [key for key in _NEEDED[kind] if key not in values]:
        raise ModelConfigError(f"rope scaling {kind!r} without {', '.join(missing)} in the model's config")
    _refuse_rest(kind, values, known=(*_NEEDED[kind], *(_YARN if kind == "yarn" else ())))
    return _scaled(kind, {key: _typed(key, value) for key, value in values.items()})


def _typed(key: str, value: Any) -> Any:
    if key == "truncate":
        return as_flag(key, value)
    return as_size(key, value) if key == "original_max_position_embeddings" else as_number(key, value, above=0.0)


def _refuse_rest(kind: str, values: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    if rest := sorted(values.keys() - set(known)):
        raise ModelConfigError(f"rope scaling {kind!r} with {', '.join(rest)} is not supported")


def _scaled(kind: Any, values: dict[str, Any]) -> RopeSpec:
    values = dict(values)
    if kind == "yarn":
        values.setdefault("attention_factor", _attention_factor(values))
    values.pop("mscale", None)
    values.pop("mscale_all_dim", None)
    original = values.pop("original_max_position_embeddings", None)
    rope = RopeSpec(scaling=kind, **values)
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise ModelConfigError("high_freq_factor in the model's config: expected more than low_freq_factor")
    return rope if original is None else dataclasses.replace(rope, original_max_positions=original)


def _attention_factor(values: Mapping[str, Any]) -> float:
    """YaRN's correction of the scores' temperature, spread over cosines and sines."""

    def stretch(by: float) -> float:
        return 0.1 * by * math.log(values["factor"]) + 1.0 if values["factor"] > 1 else 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return stretch(values["mscale"]) / stretch(values["mscale_all_dim"])
    return stretch(1.0)
