"""A plan of batch inference held against the model folder that it names: whether the task fits, and how long a text
may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tpuctl.errors import WeightsError
from tpuctl.model_folder import read_config, read_json
from tpuctl.modelspec import num_parameters
from tpuctl.modelspec.encoder import ENCODERS, EncoderSpec, num_encoder_parameters
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.plan.infer import check_room
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.plan.schema import InferencePlan
from tpuctl.plan.source import ModelErrors, refusal
from tpuctl.plan.weights_header import check_header
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import InferenceRecipe

DEFAULT_MAX_LENGTH = 2048


def fit_model(plan: InferencePlan, recipe: InferenceRecipe) -> InferencePlan:
    """The plan with what its model folder decides. Reads ``config.json``, and of local weights the headers.

    Raises:
        RecipeError: no such folder, no model that does the task, or one that takes no texts that long.
    """
    if plan.model is None or recipe.model.source is None or plan.model.uri.startswith("builtin:"):
        return plan
    try:
        model = _Model.of(plan.model.uri, plan.task)
    except ModelErrors as error:
        raise refusal(recipe, error) from error
    findings = Findings(origin=recipe.origin)
    length = plan.task.max_length or model.usual_length
    if model.positions and length > model.positions:
        message = f"{length} tokens, and the model knows {model.positions} positions"
        findings.refuse("task.max_length", message, f"use at most {model.positions}")
    task = replace(plan.task, max_length=length)
    check_room(task, findings)
    findings.settle()
    return replace(plan, task=task, model=replace(plan.model, parameters=model.parameters))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """What a task is held against. ``positions`` is 0 where nothing bounds them."""

    positions: int
    usual_length: int
    parameters: int

    @classmethod
    def of(cls, uri: str, task: TaskPlan) -> Self:
        config = read_config(uri)
        family = config.get("model_type")
        encodes = family in ENCODERS
        if encodes != (task.kind == "embed"):
            what, fitting = ("an encoder", "embed") if encodes else ("a decoder", "generate, score or classify")
            if encodes or isinstance(family, str):
                raise WeightsError(
                    f"{uri} is {what} ({family}), which does not {task.kind}", hint=f"its task is {fitting}"
                )
        if encodes:
            encoder = EncoderSpec.of_config(config)
            own = (read_json(uri, "sentence_bert_config.json") or {}).get("max_seq_length")
            usual = own if isinstance(own, int) and own > 0 else encoder.max_length
            return cls(positions=encoder.max_length, usual_length=usual, parameters=num_encoder_parameters(encoder))
        spec = spec_from_config(config)
        if "://" not in uri:
            check_header(uri, spec)
        usual = min(spec.max_positions or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
        return cls(positions=spec.max_positions, usual_length=usual, parameters=num_parameters(spec))
