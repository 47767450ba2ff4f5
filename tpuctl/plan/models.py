"""A recipe of several models behind one address made a plan: each as if it were alone, and what holds between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from tpuctl import __version__
from tpuctl.errors import RecipeError
from tpuctl.plan.encoder_source import EncoderSource
from tpuctl.plan.here import Here
from tpuctl.plan.schema import ModelsPlan, ServedModelPlan, ServingPlan
from tpuctl.plan.serve import ENTRYPOINT, resolve_serving
from tpuctl.plan.serve_schema import AddressPlan
from tpuctl.plan.source import ModelSource, Source
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe

_KEY_LIMITS = ("key_requests_per_second", "key_concurrent")
_OF_ENDPOINT = ("name", "max_waiting", "min_replicas", "max_replicas", "idle_seconds")


def resolve_models(
    recipe: ServingRecipe, *, environ: Mapping[str, str], here: Here, sources: Mapping[str, Source]
) -> ModelsPlan:
    """What a recipe with ``models`` amounts to.

    Raises:
        RecipeError: all rules that are broken, by whichever model.
    """
    findings = Findings(origin=recipe.origin)
    _check_names(recipe, findings)
    plans: list[ServingPlan] = []
    for name, one in recipe.models.items():
        try:
            source = _decoder(one, sources.get(name))
            plans.append(resolve_serving(one, environ=environ, here=here, source=source))
        except RecipeError as error:
            findings.take(error)
    _check_key_limits(recipe, findings)
    findings.settle()
    first = plans[0]
    return ModelsPlan(
        kind="serve",
        entrypoint=ENTRYPOINT,
        tpuctl_version=__version__,
        run=first.run,
        job=first.job,
        notes=merged_notes({plan.endpoint.name: plan.notes for plan in plans}),
        address=AddressPlan(**{field.name: getattr(first.endpoint, field.name) for field in fields(AddressPlan)}),
        models=tuple(_own(plan) for plan in plans),
    )


def merged_notes(notes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The notes of all models, each with the model's name unless it is everyone's."""
    shared = [note for note in next(iter(notes.values())) if all(note in others for others in notes.values())]
    own = [f"{name}: {note}" for name, several in notes.items() for note in several if note not in shared]
    return (*shared, *own)


def _decoder(recipe: ServingRecipe, source: Source) -> ModelSource | None:
    if not isinstance(source, EncoderSource):
        return source
    message = f"{source.uri} is an encoder, which is not served beside other models"
    raise RecipeError(message, hint="serve it by a recipe of its own", where=recipe.origin.where("model.source"))


def _check_names(recipe: ServingRecipe, findings: Findings) -> None:
    """A name that clients may give means one thing."""
    meant: dict[str, str] = dict.fromkeys(recipe.models, "a model")
    for name, one in recipe.models.items():
        for adapter in one.serve.adapters:
            if adapter in meant and adapter != name:
                key = f"models.{name}.serve.adapters.{adapter}"
                findings.refuse(key, f"is the name of {meant[adapter]} too", "give it another")
            meant.setdefault(adapter, f"an adapter of {name}")


def _check_key_limits(recipe: ServingRecipe, findings: Findings) -> None:
    for key in _KEY_LIMITS:
        if getattr(recipe.serve, key) is not None and not findings.has(f"serve.{key}"):
            findings.refuse(f"serve.{key}", "each model would count by itself", "leave it out, or serve one model")


def _own(plan: ServingPlan) -> ServedModelPlan:
    in_endpoint = {name: getattr(plan.endpoint, name) for name in _OF_ENDPOINT}
    others = [field.name for field in fields(ServedModelPlan) if field.name not in in_endpoint]
    return ServedModelPlan(**in_endpoint, **{name: getattr(plan, name) for name in others})
