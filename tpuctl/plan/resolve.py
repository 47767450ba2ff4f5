"""From a recipe to a plan: every default filled in, every rule over several keys checked. No clock, no network,
and no file but the tokenizer's, whose number of ids the model's size depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from tpuctl import __version__
from tpuctl.plan.apart import check_apart
from tpuctl.plan.budget import Workload, choose_remat, estimate, gib, shortage_hint
from tpuctl.plan.custom_schema import WorkPlan
from tpuctl.plan.embedding import resolve_embedding
from tpuctl.plan.encoder_source import EncoderSource
from tpuctl.plan.environment import plan_job
from tpuctl.plan.here import Here
from tpuctl.plan.infer import resolve_inference
from tpuctl.plan.lora import plan_lora
from tpuctl.plan.mesh import plan_mesh
from tpuctl.plan.model import ModelGround, plan_model, plan_tokenizer
from tpuctl.plan.models import resolve_models
from tpuctl.plan.places import plan_data, plan_run
from tpuctl.plan.schema import CustomPlan, JobKind, Plan, TrainingPlan
from tpuctl.plan.serve import resolve_serving
from tpuctl.plan.slices import plan_slices
from tpuctl.plan.source import ModelSource, Source
from tpuctl.plan.train_schema import BudgetPlan, CheckpointPlan, DataPlan, ExpectPlan, OptimPlan, TrainPlan
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.recipe.custom import CustomJobTable
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import CustomRecipe, InferenceRecipe, Recipe, ServingRecipe, TrainingRecipe
from tpuctl.topology import generation

ENTRYPOINTS: dict[JobKind, str] = {"train": "tpuctl.entrypoints.train", "custom": "tpuctl.entrypoints.custom"}
_LONGEST_WARMUP = 1000


def resolve(
    recipe: Recipe,
    *,
    environ: Mapping[str, str],
    cwd: os.PathLike[str] | str,
    source: Source | Mapping[str, Source] = None,
) -> Plan:
    """What the recipe amounts to.

    Args:
        recipe: As loaded.
        environ: The caller's environment: ``job.pass_env`` and ``~`` are looked up in it, nothing else.
        cwd: Where relative paths start, whatever directory the recipe lies in.
        source: What ``source.find_source`` found where the recipe names a model folder, or several.

    Raises:
        RecipeError: all rules that are broken, each with file, line, key and remedy.
    """
    here = Here.of(cwd, environ)
    plan = _resolve(recipe, environ=environ, here=here, source=source)
    check_apart(plan, home=here.home, origin=recipe.origin)
    return plan


def _resolve(recipe: Recipe, *, environ: Mapping[str, str], here: Here, source: Source | Mapping[str, Source]) -> Plan:
    if isinstance(recipe, InferenceRecipe):
        return resolve_inference(recipe, environ=environ, here=here)
    if isinstance(recipe, ServingRecipe) and recipe.models:
        assert source is None or isinstance(source, Mapping), "find_source gives one for each model"
        return resolve_models(recipe, environ=environ, here=here, sources=source or {})
    assert not isinstance(source, Mapping), "find_source gives several to no other"
    if isinstance(source, EncoderSource):
        assert isinstance(recipe, ServingRecipe), "read_source gives an encoder to no other"
        return resolve_embedding(recipe, environ=environ, here=here, source=source)
    if isinstance(recipe, ServingRecipe):
        return resolve_serving(recipe, environ=environ, here=here, source=source)
    if isinstance(recipe, CustomRecipe):
        return _resolve_custom(recipe, environ=environ, here=here)
    assert isinstance(recipe, TrainingRecipe), "there is no other kind"
    return _resolve_training(recipe, environ=environ, here=here, source=source)


def _resolve_training(
    recipe: TrainingRecipe, *, environ: Mapping[str, str], here: Here, source: ModelSource | None
) -> TrainingPlan:
    findings = Findings(origin=recipe.origin)
    slices = plan_slices(recipe, findings=findings)
    tokenizer = plan_tokenizer(recipe, source)
    ground = ModelGround(source=source, tokenizer=tokenizer, here=here)
    model = plan_model(recipe, ground=ground, findings=findings)
    lora = plan_lora(recipe, source=source, here=here, findings=findings)
    run = plan_run(recipe, here=here, findings=findings)
    data = plan_data(recipe, tokenizer=tokenizer, here=here, findings=findings)
    job = plan_job(recipe, environ=environ, here=here, findings=findings)
    optim = _optim(recipe, findings)
    _check_cadence(recipe, data, findings)
    mesh = plan_mesh(recipe, slices, model, findings=findings) if slices and model else None
    findings.settle()
    assert slices is not None  # these three are None only together with a problem
    assert model is not None
    assert mesh is not None
    hbm_bytes = generation(slices.generation).hbm_bytes_per_device
    work = _workload(recipe, Workload(model=model, mesh=mesh, train=_train(recipe), hbm_bytes=hbm_bytes, lora=lora))
    budget = estimate(work, work.train.remat)
    _check_budget(work, budget, findings)
    findings.settle()
    return TrainingPlan(
        kind=recipe.kind,
        entrypoint=ENTRYPOINTS[recipe.kind],
        tpuctl_version=__version__,
        run=run,
        slice=slices,
        mesh=mesh,
        model=model,
        weights=None if source is None else WeightsPlan(uri=source.uri, family=source.family),
        lora=lora,
        data=data,
        optim=optim,
        train=work.train,
        checkpoint=CheckpointPlan(
            every=recipe.checkpoint.every, keep=recipe.checkpoint.keep, resume=recipe.checkpoint.resume
        ),
        job=job,
        expect=ExpectPlan(max_eval_loss=recipe.expect.max_eval_loss, max_bits_per_byte=recipe.expect.max_bits_per_byte),
        budget=budget,
        notes=tuple(findings.notes),
    )


def _resolve_custom(recipe: CustomRecipe, *, environ: Mapping[str, str], here: Here) -> CustomPlan:
    findings = Findings(origin=recipe.origin)
    slices = plan_slices(recipe, findings=findings)
    run = plan_run(recipe, here=here, findings=findings)
    job = plan_job(recipe, environ=environ, here=here, findings=findings)
    work = _work(recipe.job, here=here, findings=findings)
    findings.settle()
    assert slices is not None  # None only together with a problem
    return CustomPlan(
        kind=recipe.kind,
        entrypoint=ENTRYPOINTS[recipe.kind],
        tpuctl_version=__version__,
        run=run,
        slice=slices,
        job=job,
        work=work,
        notes=tuple(findings.notes),
    )


def _work(job: CustomJobTable, *, here: Here, findings: Findings) -> WorkPlan:
    if (job.command is None) == (job.entrypoint is None):
        both = "both" if job.command else "neither"
        hint = 'write command = "python train.py" or entrypoint = "module:function"'
        findings.refuse("job.command", f"{both} of command and entrypoint given", hint)
    if job.working_directory is None and (job.include or job.exclude):
        findings.refuse("job.working_directory", "missing, but files are chosen from it", 'add working_directory = "."')
    directory = None if job.working_directory is None else here.absolute(job.working_directory)
    return WorkPlan(
        command=job.command or (),
        function=job.entrypoint,
        directory=directory,
        include=job.include,
        exclude=job.exclude,
    )


def _optim(recipe: TrainingRecipe, findings: Findings) -> OptimPlan:
    optim, steps = recipe.optim, recipe.train.steps
    warmup = min(steps // 10, _LONGEST_WARMUP) if optim.warmup_steps is None else optim.warmup_steps
    if warmup > steps:
        hint = f"use at most {steps}, or leave it out"
        findings.refuse("optim.warmup_steps", f"{warmup} steps of warm-up in a run of {steps} steps", hint)
    return OptimPlan(
        learning_rate=optim.learning_rate,
        schedule=optim.schedule,
        warmup_steps=warmup,
        decay_steps=_decay_steps(recipe, warmup, findings),
        final_ratio=optim.final_ratio,
        weight_decay=optim.weight_decay,
        beta1=optim.beta1,
        beta2=optim.beta2,
        epsilon=optim.epsilon,
        clip_norm=optim.clip_norm or None,
    )


def _decay_steps(recipe: TrainingRecipe, warmup: int, findings: Findings) -> int:
    optim, steps = recipe.optim, recipe.train.steps
    after_warmup = max(steps - warmup, 0)
    if optim.schedule == "constant":
        if optim.decay_steps is not None:
            findings.refuse("optim.decay_steps", "a constant schedule has no decay", "leave it out")
        return 0
    if optim.decay_steps is None:
        return min(max(steps // 5, 1), after_warmup) if optim.schedule == "wsd" else after_warmup
    if optim.schedule == "wsd" and optim.decay_steps > after_warmup:
        message = f"a decay of {optim.decay_steps} steps does not fit into the {after_warmup} after warm-up"
        findings.refuse("optim.decay_steps", message, f"use at most {after_warmup}")
    elif optim.decay_steps > after_warmup:
        findings.notes.append(f"optim.decay_steps = {optim.decay_steps}: the run ends before the decay does")
    return optim.decay_steps


def _check_cadence(recipe: TrainingRecipe, data: DataPlan, findings: Findings) -> None:
    train, steps = recipe.train, recipe.train.steps
    if data.eval_uri is None and not findings.has("data.uri", "data.eval_uri"):
        if train.eval_every:
            findings.refuse("train.eval_every", "there is no held-out text to evaluate on", "set data.eval_uri")
        for gate in ("max_eval_loss", "max_bits_per_byte"):
            if getattr(recipe.expect, gate) is not None:
                findings.refuse(f"expect.{gate}", "there is no held-out text to judge by", "set data.eval_uri")
    if data.eval_uri is not None and train.eval_every > steps:
        findings.notes.append(f"train.eval_every = {train.eval_every}: evaluated once, after step {steps}")
    if recipe.checkpoint.every > steps:
        findings.notes.append(f"checkpoint.every = {recipe.checkpoint.every}: saved once, after step {steps}")


def _train(recipe: TrainingRecipe) -> TrainPlan:
    table = recipe.train
    return TrainPlan(
        steps=table.steps,
        global_batch=table.global_batch,
        microbatches=table.microbatches,
        sequence_length=table.sequence_length,
        seed=table.seed,
        compute_dtype=table.compute_dtype,
        remat=table.remat or "none",
        z_loss=table.z_loss,
        dropout=recipe.model.dropout,
        log_every=table.log_every,
        eval_every=table.eval_every,
        eval_batches=table.eval_batches,
    )


def _workload(recipe: TrainingRecipe, work: Workload) -> Workload:
    """With the rematerialisation policy that the recipe leaves open."""
    if recipe.train.remat is not None:
        return work
    return replace(work, train=replace(work.train, remat=choose_remat(work)))


def _check_budget(work: Workload, budget: BudgetPlan, findings: Findings) -> None:
    if budget.needed_bytes <= budget.hbm_bytes:
        return
    message = (
        f"does not fit: about {gib(budget.needed_bytes)} per device, of {gib(budget.hbm_bytes)} "
        f"(state {gib(budget.state_bytes)}, gradients {gib(budget.gradient_bytes)}, "
        f"activations {gib(budget.activation_bytes)}, logits {gib(budget.logit_bytes)})"
    )
    findings.refuse("slice.topology", message, shortage_hint(work, budget))
