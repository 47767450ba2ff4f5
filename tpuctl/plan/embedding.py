"""A recipe that serves an encoder made a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl import __version__
from tpuctl.plan.encoder_source import EncoderSource
from tpuctl.plan.endpoint import plan_endpoint
from tpuctl.plan.environment import plan_job
from tpuctl.plan.here import Here
from tpuctl.plan.places import plan_run
from tpuctl.plan.schema import EmbeddingPlan
from tpuctl.plan.serve_schema import EncoderPlan
from tpuctl.plan.slices import plan_slices
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe

_ENTRYPOINT = "tpuctl.entrypoints.serve"


def resolve_embedding(
    recipe: ServingRecipe, *, environ: Mapping[str, str], here: Here, source: EncoderSource
) -> EmbeddingPlan:
    """What a recipe that serves an encoder amounts to.

    Raises:
        RecipeError: all rules that are broken.
    """
    findings = Findings(origin=recipe.origin)
    slices = plan_slices(recipe, findings=findings)
    if slices is not None and slices.total_hosts > 1:
        message = f"{slices.total_hosts} hosts; an encoder is served from one host"
        findings.refuse("slice.topology", message, "choose a slice of one host, such as 1x1, 2x2 or v6e 2x4")
    run = plan_run(recipe, here=here, findings=findings)
    job = plan_job(recipe, environ=environ, here=here, findings=findings)
    name = source.uri.rpartition("/")[2].removeprefix("builtin:")
    endpoint = plan_endpoint(recipe, job, name=name, here=here, findings=findings)
    encoder = _encoder(recipe, source, findings)
    findings.settle()
    assert slices is not None, "None only together with a problem"
    return EmbeddingPlan(
        kind="serve",
        entrypoint=_ENTRYPOINT,
        tpuctl_version=__version__,
        run=run,
        slice=slices,
        job=job,
        notes=tuple(findings.notes),
        encoder=encoder,
        endpoint=endpoint,
    )


def _encoder(recipe: ServingRecipe, source: EncoderSource, findings: Findings) -> EncoderPlan:
    for key in ("preset", "tokenizer", "chat_template"):
        if getattr(recipe.model, key) is not None:
            findings.refuse(f"model.{key}", f"{source.uri} is an encoder, which has none but its own", "leave it out")
    if recipe.serve.min_replicas is not None:
        findings.refuse("serve.min_replicas", "an encoder has one replica, always", "leave it out")
    if recipe.serve.engine != "tpuctl":
        findings.refuse("serve.engine", f"{source.uri} is an encoder, which is served by tpuctl", "leave it out")
    if recipe.serve.adapters:
        findings.refuse("serve.adapters", f"{source.uri} is an encoder, which is served by itself", "leave them out")
    if recipe.engine.weights is not None:
        findings.refuse("engine.weights", f"{source.uri} is an encoder, which has float32", "leave it out")
    if recipe.engine.speculate:
        findings.refuse("engine.speculate", f"{source.uri} is an encoder, which makes no tokens", "leave it out")
    for key in ("kv_dtype", "num_pages"):
        if getattr(recipe.engine, key) is not None:
            findings.refuse(f"engine.{key}", f"{source.uri} is an encoder, which has no pages", "leave it out")
    positions = source.spec.max_length
    length = recipe.engine.max_length or source.own_length
    if length > positions:
        message = f"{length} tokens, and the model knows {positions} positions"
        findings.refuse("engine.max_length", message, f"use at most {positions}")
    return EncoderPlan(
        uri=source.uri,
        parameters=source.parameters,
        pooling=source.pooling,
        normalise=True,
        max_length=length,
        batch_rows=recipe.engine.max_sequences,
    )
