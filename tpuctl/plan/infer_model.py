"""A plan of batch inference held against the model folder that it names: whether the task fits, and how long a text
may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS
from tpuctl.errors import WeightsError
from tpuctl.model_folder import read_config
from tpuctl.modelspec import PRESETS, ModelSpec, num_parameters
from tpuctl.modelspec.encoder import ENCODERS
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.modelspec.values import shown
from tpuctl.plan.encoder_source import EncoderSource
from tpuctl.plan.infer_replica import plan_replica
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.plan.infer_task import check_room
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
    if plan.model is None:
        return plan
    try:
        model = _Model.of(plan.model.uri, plan.task)
    except ModelErrors as error:
        raise refusal(recipe, error, uri=plan.model.uri) from error
    findings = Findings(origin=recipe.origin)
    length = plan.task.max_length or model.usual_length
    if model.positions and length > model.positions:
        message = f"{length} tokens, and the model knows {model.positions} positions"
        findings.refuse("task.max_length", message, f"use at most {model.positions}")
    task = replace(plan.task, max_length=length)
    check_room(task, findings)
    replica = None
    if model.decoder is not None:
        replica = plan_replica(model.decoder, task, plan.slice, per=recipe.task.replica, findings=findings)
    findings.settle()
    source = replace(plan.model, parameters=model.parameters)
    return replace(plan, task=task, model=source, replica=replica, notes=(*plan.notes, *findings.notes))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """What a task is held against. ``positions`` is 0 where nothing bounds them; an encoder has no ``decoder``."""

    positions: int
    usual_length: int
    parameters: int
    decoder: ModelSpec | None = None

    @classmethod
    def of(cls, uri: str, task: TaskPlan) -> Self:
        """The model at a place; raises one of ``ModelErrors`` where it is none for the task."""
        if uri in BUILTIN_MODELS and uri not in BUILTIN_DECODERS:
            return cls.of_encoder(EncoderSource.of_builtin(uri))
        if uri.startswith("builtin:"):
            return cls.of_decoder(PRESETS[uri.removeprefix("builtin:")])
        config = read_config(uri)
        _check_task(uri, config.get("model_type"), task)
        if task.kind == "embed":
            return cls.of_encoder(EncoderSource.of_folder(uri))
        spec = spec_from_config(config)
        if "://" not in uri:
            check_header(uri, spec)
        return cls.of_decoder(spec)

    @classmethod
    def of_decoder(cls, spec: ModelSpec) -> Self:
        """What a decoder's spec says."""
        usual = min(spec.max_positions or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)
        return cls(positions=spec.max_positions, usual_length=usual, parameters=num_parameters(spec), decoder=spec)

    @classmethod
    def of_encoder(cls, source: EncoderSource) -> Self:
        """What an encoder says of itself."""
        return cls(positions=source.spec.max_length, usual_length=source.own_length, parameters=source.parameters)


def _check_task(uri: str, family: Any, task: TaskPlan) -> None:
    if family in ENCODERS and task.kind != "embed":
        message = f"{uri} is an encoder ({family}), which does not {task.kind}"
        raise WeightsError(message, hint="its task is embed")
    if family not in ENCODERS and task.kind == "embed":
        message = f"{uri} is no encoder ({shown(family)}), and embed needs one"
        raise WeightsError(message, hint=f"encoders: {', '.join(ENCODERS)}; a decoder does generate, score or classify")
