"""A recipe of batch inference made a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl import __version__
from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS
from tpuctl.plan.environment import plan_job
from tpuctl.plan.here import Here
from tpuctl.plan.infer_schema import InferDataPlan, OutputPlan, SourcePlan
from tpuctl.plan.infer_task import plan_task
from tpuctl.plan.places import dataset_place, plan_run, storage_place
from tpuctl.plan.schema import InferencePlan
from tpuctl.plan.slices import plan_slices
from tpuctl.plan.source import check_builtin
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import InferenceRecipe

ENTRYPOINT = "tpuctl.entrypoints.infer"


def resolve_inference(recipe: InferenceRecipe, *, environ: Mapping[str, str], here: Here) -> InferencePlan:
    """What a recipe of batch inference amounts to.

    Raises:
        RecipeError: all rules that are broken.
    """
    findings = Findings(origin=recipe.origin)
    slices = plan_slices(recipe, findings=findings)
    run = plan_run(recipe, here=here, findings=findings)
    job = plan_job(recipe, environ=environ, here=here, findings=findings)
    data = _data(recipe, here=here, findings=findings)
    output = _output(recipe, here=here, findings=findings)
    task = plan_task(recipe, here=here, findings=findings)
    model = _model(recipe, here=here, findings=findings)
    findings.settle()
    assert slices is not None  # None only together with a problem
    return InferencePlan(
        kind="infer",
        entrypoint=ENTRYPOINT,
        tpuctl_version=__version__,
        run=run,
        slice=slices,
        job=job,
        notes=tuple(findings.notes),
        data=data,
        model=model,
        task=task,
        replica=None,
        output=output,
    )


def _data(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> InferDataPlan:
    data = recipe.data
    uri = dataset_place("data.uri", data.uri, here=here, findings=findings)
    return InferDataPlan(uri=uri, columns=data.columns, limit=data.limit)


def _model(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> SourcePlan | None:
    source = recipe.model.source
    if source is None:
        if recipe.task.kind != "custom":
            fitting = [name for name in BUILTIN_MODELS if (name in BUILTIN_DECODERS) == (recipe.task.kind != "embed")]
            hint = f'add source = "{fitting[0]}", or a model folder of your own'
            findings.refuse("model.source", f"missing: a task of kind {recipe.task.kind!r} needs a model", hint)
        return None
    if recipe.task.kind == "custom":
        findings.refuse("model.source", "a custom task brings its own model", "leave it out")
    if source.startswith("builtin:"):
        check_builtin(source, decoder=recipe.task.kind != "embed", findings=findings)
        return SourcePlan(uri=source)
    return SourcePlan(uri=storage_place("model.source", source, here=here, findings=findings))


def _output(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> OutputPlan:
    output, batch_rows = recipe.output, recipe.task.batch_rows
    if output.rows_per_part < batch_rows:
        message = f"{output.rows_per_part} rows are less than one batch of {batch_rows}"
        findings.refuse("output.rows_per_part", message, f"use at least {batch_rows}, or a smaller task.batch_rows")
    share = output.max_quarantine.removesuffix("%")
    if output.max_quarantine.endswith("%") and float(share) > 100:
        findings.refuse("output.max_quarantine", f"{share} % is more than all rows", "use at most 100%")
    return OutputPlan(
        uri=storage_place("output.uri", output.uri, here=here, findings=findings),
        mode=output.mode,
        rows_per_part=output.rows_per_part,
        bad_rows=output.bad_rows,
        max_quarantine=output.max_quarantine,
    )
