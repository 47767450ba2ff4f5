"""The model of a recipe: a preset with overrides or sizes of one's own, and a vocabulary that fits the tokenizer."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.modelspec import PRESETS, ModelSpec
from tpuctl.plan.here import Here
from tpuctl.plan.source import ModelSource
from tpuctl.plan.tokenizer import file_ids, is_tokenizer_file, tokenizer_ids
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import TrainingRecipe

# A padded vocabulary shards over any sensible tensor axis; the padding rows are never targets.
_VOCAB_MULTIPLE = 128
_NEEDED = ("hidden_size", "num_layers", "num_heads", "mlp_size")


def plan_tokenizer(recipe: TrainingRecipe, source: ModelSource | None) -> str:
    """The tokenizer's name: the recipe's, else the model folder's, else plain bytes."""
    if recipe.data.tokenizer is not None:
        return recipe.data.tokenizer
    return source.uri if source is not None and source.has_tokenizer else "bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelGround:
    """What a model is settled on beside its table: the folder it comes from, the tokenizer, and where files lie."""

    source: ModelSource | None
    tokenizer: str
    here: Here


def plan_model(recipe: TrainingRecipe, *, ground: ModelGround, findings: Findings) -> ModelSpec | None:
    """The model, or None where its sizes are not settled; what is wrong stands in ``findings``.

    Reads the tokenizer's file, if it is on this machine, for the number of its ids.
    """
    before = len(findings.problems)
    if ground.source is not None:
        spec = ground.source.spec
        _check_only_source(recipe, findings)
        _vocab_size(ground, spec.vocab_size, findings)
        _check_length(spec, recipe, findings)
        return spec
    sizes = _sizes(recipe, findings)
    if len(findings.problems) > before:
        return None
    sizes["vocab_size"] = _vocab_size(ground, sizes.get("vocab_size") or None, findings)
    spec = _without_missing_layers(ModelSpec(**sizes))
    _check_heads(spec, findings)
    _check_length(spec, recipe, findings)
    return None if len(findings.problems) > before else spec


def _check_only_source(recipe: TrainingRecipe, findings: Findings) -> None:
    for name in [*(["preset"] if recipe.model.preset is not None else []), *_given(recipe)]:
        findings.refuse(f"model.{name}", "the model is that of model.source", "leave one of the two out")


def _given(recipe: TrainingRecipe) -> dict[str, Any]:
    own = {f.name: getattr(recipe.model, f.name, None) for f in dataclasses.fields(ModelSpec) if f.name != "name"}
    return {name: value for name, value in own.items() if value is not None}


def _sizes(recipe: TrainingRecipe, findings: Findings) -> dict[str, Any]:
    table, given = recipe.model, _given(recipe)
    if table.preset is not None:
        return _preset_sizes(table.preset, given, findings)
    missing = [name for name in _NEEDED if name not in given]
    if missing:
        hint = f"set preset ({', '.join(PRESETS)}), source, or {' and '.join(missing)}"
        findings.refuse("model.preset", "no preset, no source, and the sizes are not complete", hint)
        return {}
    given.setdefault("num_kv_heads", given["num_heads"])
    if "head_dim" not in given and given["hidden_size"] % given["num_heads"]:
        message = f"hidden_size {given['hidden_size']} does not divide into {given['num_heads']} heads"
        findings.refuse("model.num_heads", message, "set head_dim, or change one of the two")
    given.setdefault("head_dim", given["hidden_size"] // given["num_heads"])
    return {"name": "custom", **given}


def _preset_sizes(name: str, given: dict[str, Any], findings: Findings) -> dict[str, Any]:
    preset = PRESETS.get(name)
    if preset is None:
        near = difflib.get_close_matches(name.lower(), PRESETS, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"presets: {', '.join(PRESETS)}"
        findings.refuse("model.preset", f"unknown preset {name!r}", hint)
        return {}
    sizes = {f.name: getattr(preset, f.name) for f in dataclasses.fields(preset)}
    changed = {key for key, value in given.items() if key != "vocab_size" and value != sizes[key]}
    return {**sizes, **given, "name": "custom" if changed else name}


def _vocab_size(ground: ModelGround, asked: int | None, findings: Findings) -> int:
    name = ground.tokenizer
    before = len(findings.problems)
    ids = _ids(name, ground.here, findings)
    if ids is None:
        broken = len(findings.problems) > before
        if asked is None and is_tokenizer_file(name) and not broken:  # any other name is refused for itself
            hint = "set it to at least the number of ids of the tokenizer"
            findings.refuse("model.vocab_size", f"missing: there is no tokenizer.json to read at {name} here", hint)
        return asked or 0
    if asked is not None and asked < ids:
        message = f"{asked} rows are too few for the {ids} ids of tokenizer {name!r}"
        findings.refuse("model.vocab_size", message, f"set it to at least {ids}, or leave it out")
    return asked or -(-ids // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE


def _ids(name: str, here: Here, findings: Findings) -> int | None:
    if not is_tokenizer_file(name) or "://" in name:
        return tokenizer_ids(name)
    path = here.absolute(name)
    try:
        return file_ids(Path(path))
    except ValueError as error:
        findings.refuse("data.tokenizer", f"{path} is not a tokenizer.json: {error}", "name another file")
        return None


def _check_heads(spec: ModelSpec, findings: Findings) -> None:
    if spec.num_heads % spec.num_kv_heads:
        message = f"{spec.num_heads} query heads can't share {spec.num_kv_heads} key and value heads evenly"
        findings.refuse("model.num_kv_heads", message, "choose a divisor of num_heads")
    if spec.head_dim % 2:
        findings.refuse(
            "model.head_dim", f"{spec.head_dim} is odd; rotary embedding turns pairs", "choose an even size"
        )


def _check_length(spec: ModelSpec, recipe: TrainingRecipe, findings: Findings) -> None:
    length = recipe.train.sequence_length
    bounded = spec.positions == "learned" or (recipe.model.source is not None and spec.max_positions > 0)
    if bounded and length > spec.max_positions:
        message = f"{length} tokens are more than the {spec.max_positions} positions the model has learned"
        findings.refuse("train.sequence_length", message, f"use at most {spec.max_positions}")


def _without_missing_layers(spec: ModelSpec) -> ModelSpec:
    """A preset made shallower keeps what it says of the layers that are left."""

    def left(layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer for layer in layers if layer < spec.num_layers)

    experts = spec.experts and dataclasses.replace(spec.experts, dense_layers=left(spec.experts.dense_layers))
    return dataclasses.replace(spec, local_layers=left(spec.local_layers), experts=experts)
