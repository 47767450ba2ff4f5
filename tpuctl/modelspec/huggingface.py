"""Hugging Face configs to specs and back, for the families whose every option the decoder has.

A key that changes the maths and is not understood is refused by name: a model is computed exactly or not at all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuctl.modelspec.config import Config, ModelConfigError
from tpuctl.modelspec.readers import DEFAULTS, READERS
from tpuctl.modelspec.spec import ModelSpec
from tpuctl.modelspec.values import shown
from tpuctl.modelspec.writers import WRITERS


def spec_from_config(config: Mapping[str, Any], *, name: str | None = None) -> ModelSpec:
    """The spec of the model a ``config.json`` describes, in the spelling of transformers 4 or 5.

    ``name`` is the spec's, by default the family's. A config of text and images gives its text model.

    Raises:
        ModelConfigError: a family, a key or a value that the decoder does not have, or a missing key.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        quantised = {"quantization_config": config.get("quantization_config")}
        config = {**tied, **quantised, "model_type": f"{config.get('model_type')}_text", **text}
    family = config.get("model_type")
    if not isinstance(family, str) or family not in READERS:
        known = ", ".join(READERS)
        message = f"model_type {shown(family)} is not a family that tpuctl computes"
        raise ModelConfigError(message, hint=f"known: {known}")
    reader = Config({**DEFAULTS.get(family, {}), **config})
    spec = ModelSpec(name=name or family, **READERS[family](reader))
    reader.finish()
    _check(spec)
    return spec


def read_config(path: Path) -> dict[str, Any]:
    """The JSON of a ``config.json``; raises ``ModelConfigError`` where it is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"{path}: not a JSON object")
    return config


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """A config of the first family that computes exactly this spec, in the spelling of transformers 4, which 5 reads.

    Raises:
        ModelConfigError: no family does; says in what the nearest one differs.
    """
    nearest: list[str] = []
    for family, (architecture, write) in WRITERS.items():
        config = {"model_type": family, "architectures": [architecture], **write(spec)}
        differing = _differing(spec, config)
        if not differing:
            return config
        nearest = differing if not nearest or len(differing) < len(nearest) else nearest
    raise ModelConfigError(
        f"no Hugging Face family computes this model: the nearest has another {', '.join(nearest)}",
        hint="it can be trained and served by tpuctl, but not exported",
    )


def _differing(spec: ModelSpec, config: Mapping[str, Any]) -> list[str]:
    try:
        again = spec_from_config(config, name=spec.name)
    except ModelConfigError as error:
        return [error.message] * 100
    return [f.name for f in dataclasses.fields(spec) if getattr(again, f.name) != getattr(spec, f.name)]


def _check(spec: ModelSpec) -> None:
    if spec.num_heads % spec.num_kv_heads:
        message = f"{spec.num_heads} query heads can't share {spec.num_kv_heads} key and value heads"
        raise ModelConfigError(f"num_key_value_heads: {message}")
    if spec.positions == "rotary" and spec.head_dim % 2:
        raise ModelConfigError(f"head_dim {spec.head_dim} is odd; rotary embedding turns pairs")
    experts = spec.experts
    if experts is not None and experts.experts_per_token > experts.num_experts:
        message = f"{experts.experts_per_token} of {experts.num_experts} experts can't be chosen for a token"
        raise ModelConfigError(f"num_experts_per_tok: {message}")
