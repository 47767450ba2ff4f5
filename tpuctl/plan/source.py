"""What the model folder of a recipe says of itself. The one thing a plan needs that the recipe does not hold.

A folder is read before a recipe is resolved, so that resolving stays pure: ``config.json`` and the names of files,
nothing large. A built-in model is known beforehand, and nothing of it is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS
from tpuctl.errors import RecipeError, StorageError, TpuctlError, WeightsError
from tpuctl.model_folder import read_config, tokenizer_files
from tpuctl.modelspec import PRESETS, ModelSpec
from tpuctl.modelspec.config import ModelConfigError
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.plan.adapter_source import read_adapters
from tpuctl.plan.encoder_source import EncoderSource, is_encoder
from tpuctl.plan.here import Here
from tpuctl.plan.places import storage_place
from tpuctl.plan.run_source import is_run, read_training_plan, run_and_step
from tpuctl.plan.serve_schema import ServedCheckpointPlan
from tpuctl.plan.weights_header import check_header
from tpuctl.plan.weights_schema import ServedAdapterPlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import InferenceRecipe, Recipe, ServingRecipe, TrainingRecipe
from tpuctl.storage import is_gcs

ModelErrors = (WeightsError, StorageError, ModelConfigError)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """A model folder: where it is and what its ``config.json`` describes; or a built-in model by its name.

    With ``checkpoint`` it is a run directory, and no folder yet: ``family`` is empty. ``adapters`` are to be served
    beside it.
    """

    uri: str
    spec: ModelSpec
    family: str
    has_tokenizer: bool
    checkpoint: ServedCheckpointPlan | None = None
    adapters: tuple[ServedAdapterPlan, ...] = ()


Source = ModelSource | EncoderSource | None

# Stands for a model that is not looked at: nothing that depends on a model's sizes is refused with it.
_UNSEEN = ModelSpec(
    name="unseen",
    vocab_size=1 << 20,
    hidden_size=8,
    num_layers=1,
    num_heads=1024,
    num_kv_heads=1024,
    head_dim=2,
    mlp_size=1024,
)


def find_source(
    recipe: Recipe, *, environ: Mapping[str, str], cwd: os.PathLike[str] | str, buckets: bool = True
) -> Source | dict[str, Source]:
    """What the model folder of a recipe says, of a recipe with several models each one's by the model's name.

    Without ``buckets`` nothing in one is looked at, and a stand-in takes its place.

    Raises:
        RecipeError: as ``read_source``; of several models for all of them.
    """
    if not isinstance(recipe, ServingRecipe) or not recipe.models:
        unseen = None if buckets else unseen_source(recipe, environ=environ, cwd=cwd)
        return unseen or read_source(recipe, environ=environ, cwd=cwd, buckets=buckets)
    findings, found = Findings(origin=recipe.origin), dict[str, Source]()
    for name, one in recipe.models.items():
        try:
            source = find_source(one, environ=environ, cwd=cwd, buckets=buckets)
        except RecipeError as error:
            findings.take(error)
            continue
        assert not isinstance(source, dict), "a model of several has none of its own"
        found[name] = source
    findings.settle()
    return found


def unseen_source(recipe: Recipe, *, environ: Mapping[str, str], cwd: os.PathLike[str] | str) -> ModelSource | None:
    """A stand-in for the model folder or run in a bucket that a recipe names, None where it names none there.

    Raises:
        RecipeError: the URI names no bucket.
    """
    findings, here = Findings(origin=recipe.origin), Here.of(cwd, environ)
    if isinstance(recipe, ServingRecipe) and is_gcs(recipe.model.checkpoint or ""):
        name, step = run_and_step(str(recipe.model.checkpoint))
        uri = storage_place("model.checkpoint", name, here=here, findings=findings)
        checkpoint = ServedCheckpointPlan(run=uri, step=step)
    elif isinstance(recipe, TrainingRecipe | ServingRecipe) and is_gcs(recipe.model.source or ""):
        uri = storage_place("model.source", str(recipe.model.source), here=here, findings=findings)
        checkpoint = None
    else:
        return None
    findings.settle()
    unseen = ModelSource(uri=uri, spec=_UNSEEN, family="llama", has_tokenizer=True, checkpoint=checkpoint)
    if isinstance(recipe, ServingRecipe):
        return replace(unseen, adapters=read_adapters(recipe, here=here, buckets=False))
    return unseen


def read_source(
    recipe: Recipe, *, environ: Mapping[str, str], cwd: os.PathLike[str] | str, buckets: bool = True
) -> Source:
    """The model folder a recipe names, with the adapters beside it; None where it names none. Only what serves may
    name an encoder. Without ``buckets`` adapters in one are left out.

    Raises:
        RecipeError: no such folder, or no model or adapter this version knows.
    """
    source = _read_model(recipe, environ=environ, cwd=cwd)
    if isinstance(source, ModelSource) and isinstance(recipe, ServingRecipe):
        return replace(source, adapters=read_adapters(recipe, here=Here.of(cwd, environ), buckets=buckets))
    return source


def _read_model(recipe: Recipe, *, environ: Mapping[str, str], cwd: os.PathLike[str] | str) -> Source:
    if isinstance(recipe, ServingRecipe) and recipe.model.checkpoint is not None:
        return _run(recipe, here=Here.of(cwd, environ))
    if not isinstance(recipe, TrainingRecipe | ServingRecipe) or recipe.model.source is None:
        return None
    findings = Findings(origin=recipe.origin)
    serves = isinstance(recipe, ServingRecipe)
    if recipe.model.source.startswith("builtin:"):
        if serves and recipe.model.source in BUILTIN_MODELS and is_encoder(recipe.model.source):
            return EncoderSource.of_builtin(recipe.model.source)
        return _builtin(recipe.model.source, findings)
    here = Here.of(cwd, environ)
    uri = storage_place("model.source", recipe.model.source, here=here, findings=findings)
    findings.settle()
    try:
        if serves and is_encoder(uri):
            return EncoderSource.of_folder(uri)
        source = open_source(uri)
        if "://" not in uri:
            check_header(uri, source.spec)
    except ModelErrors as error:
        raise refusal(recipe, error, uri=uri) from error
    return source


def _run(recipe: ServingRecipe, *, here: Here) -> ModelSource:
    findings = Findings(origin=recipe.origin)
    name, step = run_and_step(recipe.model.checkpoint or "")
    uri = storage_place("model.checkpoint", name, here=here, findings=findings)
    findings.settle()
    try:
        plan = read_training_plan(uri)
    except ModelErrors as error:
        raise RecipeError(error.message, hint=error.hint, where=recipe.origin.where("model.checkpoint")) from error
    checkpoint = ServedCheckpointPlan(run=uri, step=step)
    return ModelSource(uri=uri, spec=plan.model, family="", has_tokenizer=True, checkpoint=checkpoint)


def refusal(recipe: TrainingRecipe | ServingRecipe | InferenceRecipe, error: TpuctlError, *, uri: str) -> RecipeError:
    """The error of the model folder at a place as one of the recipe's line.

    A run's directory is told what makes a model folder of it, a name on a hub that it is none here.
    """
    asked, hint = recipe.model.source or "", error.hint
    if is_run(uri):
        remedy = f"write its weights with `tpuctl export {asked} FOLDER`, and name that folder"
        named = "name it in model.checkpoint instead" if isinstance(recipe, ServingRecipe) else remedy
        hint = f"it is a run's directory: {named}"
    elif _HUB_NAME.fullmatch(asked) and not os.path.isdir(asked):
        hint = "no hub is contacted: name a folder that holds the model, here or in a bucket (gs://bucket/path)"
    return RecipeError(error.message, hint=hint, where=recipe.origin.where("model.source"))


def open_source(uri: str) -> ModelSource:
    """The model folder at an absolute path or URI; raises ``WeightsError``, ``ModelConfigError`` or
    ``StorageError``."""
    config = read_config(uri)
    return ModelSource(
        uri=uri,
        spec=spec_from_config(config, name=uri.rpartition("/")[2] or None),
        family=str(config.get("model_type")),
        has_tokenizer=bool({"tokenizer.json", "tokenizer.model"}.intersection(tokenizer_files(uri))),
    )


def check_builtin(uri: str, *, decoder: bool, findings: Findings) -> None:
    """Refuse a built-in model that there is not, or that is of the other kind: a decoder makes text, an encoder
    vectors."""
    fitting = [name for name in BUILTIN_MODELS if (name in BUILTIN_DECODERS) == decoder]
    if uri not in BUILTIN_MODELS:
        findings.refuse("model.source", f"unknown built-in model {uri!r}", f"there is {', '.join(fitting)}")
    elif uri not in fitting:
        wanted, found = ("a decoder", "an encoder") if decoder else ("an encoder", "a decoder")
        findings.refuse("model.source", f"{uri} is {found}, and {wanted} is needed", f"use {', '.join(fitting)}")


def _builtin(uri: str, findings: Findings) -> ModelSource:
    check_builtin(uri, decoder=True, findings=findings)
    findings.settle()
    spec = PRESETS[BUILTIN_DECODERS[uri]]
    return ModelSource(uri=uri, spec=spec, family=BUILTIN_MODELS[uri].family, has_tokenizer=True)
