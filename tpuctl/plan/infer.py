"""A recipe of batch inference made a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl import __version__
from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS
from tpuctl.plan.environment import plan_job
from tpuctl.plan.here import Here
from tpuctl.plan.infer_schema import InferDataPlan, OutputPlan, SourcePlan, TaskPlan
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
    task = _task(recipe, here=here, findings=findings)
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
        output=output,
    )


def check_room(task: TaskPlan, findings: Findings) -> None:
    """Refuse answers so long that no prompt fits before them, once it is settled how long both may be."""
    if task.kind == "generate" and task.max_length is not None and task.max_tokens >= task.max_length:
        message = f"{task.max_tokens} tokens of {task.max_length} leave no room for a prompt"
        findings.refuse("task.max_tokens", message, f"use less than {task.max_length}, or raise task.max_length")


def _data(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> InferDataPlan:
    data = recipe.data
    uri = dataset_place("data.uri", data.uri, here=here, findings=findings)
    return InferDataPlan(uri=uri, columns=data.columns, limit=data.limit)


def _task(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> TaskPlan:
    task = recipe.task
    custom = task.kind == "custom"
    if custom and task.function is None:
        findings.refuse("task.function", "missing: a custom task is a function", 'add function = "module:function"')
    if not custom and task.function is not None:
        findings.refuse(
            "task.function", f"a task of kind {task.kind!r} has no function", 'leave it out, or kind = "custom"'
        )
    if (task.kind == "classify") != bool(task.choices):
        message = "missing: there is nothing to choose from" if not task.choices else f"{task.kind!r} has no choices"
        findings.refuse("task.choices", message, 'choices = [" yes", " no"] belong to kind = "classify"')
    if len(set(task.choices)) < len(task.choices):
        twice = next(choice for choice in task.choices if task.choices.count(choice) > 1)
        findings.refuse("task.choices", f"{twice!r} is there twice", "name every choice once")
    plan = TaskPlan(
        kind=task.kind,
        function=task.function,
        directory=here.absolute(".") if custom else None,
        inputs=task.inputs,
        batch_rows=task.batch_rows,
        ragged=task.ragged,
        text_column=None if custom else task.text_column,
        max_length=task.max_length,
        too_long=task.too_long,
        max_tokens=task.max_tokens,
        temperature=task.temperature,
        top_p=task.top_p,
        seed=task.seed,
        choices=task.choices,
        dtype=task.dtype,
        pooling=task.pooling,
        normalise=task.normalise,
    )
    check_room(plan, findings)
    return plan


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
