"""``tpuctl plan``: what a recipe amounts to, as it would run."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, RecipeArgument, SetOption
from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.plan.custom_schema import WorkPlan
    from tpuctl.plan.infer_schema import ReplicaPlan, SamplingPlan, TaskPlan
    from tpuctl.plan.schema import InferencePlan, Plan, SlicePlan, TrainingPlan
    from tpuctl.recipe.schema import Recipe


def plan(recipe: RecipeArgument, set_: SetOption = None, output: OutputOption = Output.text) -> None:
    """Show what a recipe amounts to: every default filled in, the memory it takes, what was chosen for you."""
    show(resolve_recipe(recipe, set_ or ()), output)


def show(plan: Plan, output: Output) -> None:
    """Print a plan, its secrets masked."""
    from tpuctl.plan.environment import masked
    from tpuctl.plan.schema import plan_to_json

    decided = masked(plan)
    if output is Output.json:
        console.print_json(plan_to_json(decided))
    else:
        console.out(console.printable(describe(decided)))


def resolve_recipe(recipe: Path, overrides: Sequence[str]) -> Plan:
    """The plan of a recipe file here and now; its secrets are not masked."""
    from tpuctl.recipe.load import load_recipe

    return resolve_here(load_recipe(recipe, overrides=overrides))


def resolve_here(recipe: Recipe, *, buckets: bool = True) -> Plan:
    """The plan of a loaded recipe here and now, once the model folder it may name has been looked into.

    Without ``buckets`` nothing is contacted, and what a folder in a bucket would decide is not to be relied on.
    """
    from tpuctl.plan.onsite import look_here
    from tpuctl.plan.resolve import resolve
    from tpuctl.plan.source import find_source

    cwd = current_directory()
    source = find_source(recipe, environ=os.environ, cwd=cwd, buckets=buckets)
    plan = resolve(recipe, environ=os.environ, cwd=cwd, source=source)
    return look_here(plan, recipe, home=os.environ.get("HOME"), buckets=buckets)


def current_directory() -> Path:
    """Where relative paths of a recipe start.

    Raises:
        UsageError: it has been deleted.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted", hint="cd to one that exists") from None


def describe(plan: Plan) -> str:
    """A masked plan for people, one line per part."""
    from tpuctl.cli.describe_serving import describe_embedding, describe_models, describe_serving
    from tpuctl.plan.schema import CustomPlan, EmbeddingPlan, InferencePlan, ModelsPlan, ServingPlan, TrainingPlan

    lines = [("run", f"{plan.run.name} in {plan.run.directory}")]
    lines += [("slice", f"{f'{name}: ' * bool(name)}{_slice(slices)}") for name, slices in plan.reserves.items()]
    if isinstance(plan, TrainingPlan):
        lines += _training(plan)
    if isinstance(plan, CustomPlan):
        lines += _custom(plan.work)
    if isinstance(plan, InferencePlan):
        lines += _inference(plan)
    if isinstance(plan, ServingPlan):
        lines += describe_serving(plan)
    if isinstance(plan, EmbeddingPlan):
        lines += describe_embedding(plan)
    if isinstance(plan, ModelsPlan):
        lines += describe_models(plan)
    lines.append(("job", _job(plan)))
    if isinstance(plan, TrainingPlan):
        lines.append(("memory", _memory(plan)))
    lines += [("note", note) for note in plan.notes]
    return "\n".join(f"{name:<10}  {text}" for name, text in lines)


def _custom(work: WorkPlan) -> list[tuple[str, str]]:
    runs = f"{work.function}(plan)" if work.function else shlex.join(work.command)
    without = f", without {' '.join(work.exclude)}" if work.exclude else ""
    files = f"{work.directory}{without}" if work.directory else "none of yours"
    return [("runs", f"{runs}, on every host"), ("files", files)]


def _inference(plan: InferencePlan) -> list[tuple[str, str]]:
    data, task, output = plan.data, plan.task, plan.output
    columns = f"columns {', '.join(data.columns)}" if data.columns else "all columns"
    limit = f", the first {data.limit:,} rows" if data.limit else ""
    inputs = ", ".join(task.inputs) or "all columns that can be arrays"
    batches = f"batches of {console.counted(task.batch_rows, 'row')}, ragged end {task.ragged}"
    what = f"{task.function} on {inputs}" if task.function else f"{_prompt(task)} by {_source(plan)}"
    part = console.counted(output.rows_per_part, "row")
    length = f"texts of at most {task.max_length:,} tokens" if task.max_length else "texts as long as the model takes"
    bad = "fail the job" if output.bad_rows == "fail" else f"go to quarantine, at most {output.max_quarantine}"
    return [
        ("data", f"{data.uri} ({columns}{limit})"),
        ("task", f"{task.kind} {what}; {batches}"),
        *([] if task.function else [("with", "; ".join([length, *_numbers(task)]))]),
        *([("replicas", _replicas(plan.replica, plan.replicas))] if plan.replica else []),
        ("output", f"{output.uri}, mode {output.mode}; at most {part} a part; bad rows {bad}"),
    ]


def _replicas(replica: ReplicaPlan, count: int) -> str:
    """How often the model is there, and what each of them has."""
    pages = console.counted(replica.num_pages, "KV page")
    return f"{count}, one per {replica.per}: over {console.counted(replica.tensor, 'device')}, {pages}"


def _numbers(task: TaskPlan) -> list[str]:
    """What an answer is drawn by, or a vector made with."""
    if task.kind == "embed":
        return [f"pooling {task.pooling}", "scaled to length 1" if task.normalise else "not scaled"]
    own = [f"choices of {task.choices_column}"] if task.choices_column else []
    common = [f"choices {', '.join(map(repr, task.choices))}"] if task.choices else []
    numbers = task.dtype if task.weights is None else f"{task.weights} and {task.dtype}"
    drafts = [f"up to {console.counted(task.speculate, 'draft token')} a step"] if task.speculate else []
    pages = [] if task.kv_dtype is None else [f"KV pages in {task.kv_dtype}"]
    return [*own, *common, *(_drawn(task.sampling) if task.sampling else []), numbers, *pages, *drafts]


def _prompt(task: TaskPlan) -> str:
    """Of what a row's text is made."""
    prompt = task.prompt
    if prompt is None:
        return f"of {task.text_column}"
    if prompt.text is not None:
        return f"of {prompt.text!r}"
    told = f"the conversations of {prompt.messages_column}" if prompt.messages_column else f"user {prompt.user!r}"
    system = f", system {prompt.system!r}" if prompt.system is not None else ""
    return f"of {told}{system}"


def _drawn(sampling: SamplingPlan) -> list[str]:
    """The parameters that are not at rest, and those that rows have themselves."""
    rest = {"top_k": 0, "min_p": 0, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1}
    more = [f"{name} {getattr(sampling, name):g}" for name, idle in rest.items() if getattr(sampling, name) != idle]
    return [
        f"answers of at most {sampling.max_tokens:,} tokens",
        f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, seed {sampling.seed}",
        *more,
        *([f"until {', '.join(map(repr, sampling.stop))}"] if sampling.stop else []),
        *(["bound to a JSON schema"] if sampling.json_schema else []),
        *(f"{parameter} of column {column}" for parameter, column in sampling.columns.items()),
    ]


def _source(plan: InferencePlan) -> str:
    if plan.model is None:
        return "no model"
    size = f" ({plan.model.parameters:,} parameters)" if plan.model.parameters else ""
    return f"{plan.model.uri}{size}"


def _training(plan: TrainingPlan) -> list[tuple[str, str]]:
    return [
        ("mesh", " · ".join(f"{axis} {length}" for axis, length in dataclasses.asdict(plan.mesh).items())),
        ("model", _model(plan)),
        ("weights", _weights(plan)),
        *([("lora", _lora(plan))] if plan.lora else []),
        ("data", _data(plan)),
        ("train", _train(plan)),
        ("optim", _optim(plan)),
        ("checkpoint", _checkpoint(plan)),
    ]


def _slice(slices: SlicePlan) -> str:
    several = slices.slices > 1
    count = f"{slices.slices} slices of " if several else ""
    chips = console.counted(slices.chips_per_host, "chip")
    hosts = f"{console.counted(slices.hosts, 'host')} × {chips} ({slices.machine})"
    shape = f"{slices.generation} {slices.topology} ({slices.pod_type})"
    return f"{count}{shape}: {hosts}{' each' * several}, {console.counted(slices.total_devices, 'device')}"


def _model(plan: TrainingPlan) -> str:
    model = plan.model
    heads = f"{model.num_heads}/{model.num_kv_heads} heads × {model.head_dim}"
    sizes = f"hidden {model.hidden_size}, {model.num_layers} layers, {heads}, mlp {model.mlp_size}"
    return f"{model.name}: {plan.budget.parameters:,} parameters; {sizes}, vocabulary {model.vocab_size}"


def _weights(plan: TrainingPlan) -> str:
    if plan.weights is None:
        return f"drawn from seed {plan.train.seed}"
    after = "frozen, read again by a resumed run" if plan.lora else "a resumed run has its checkpoint's"
    return f"{plan.weights.uri} ({plan.weights.family}); {after}"


def _lora(plan: TrainingPlan) -> str:
    lora = plan.lora
    assert lora is not None, "asked for only then"
    start = f"from {lora.adapter}" if lora.adapter else "new"
    dropout = f", dropout {lora.dropout:g}" if lora.dropout else ""
    size = f"{plan.budget.trained:,} of them trained"
    return f"rank {lora.rank}, alpha {lora.alpha:g}{dropout} on {', '.join(lora.targets)}; {start}; {size}"


def _data(plan: TrainingPlan) -> str:
    data = plan.data
    held_out = f"held out {data.eval_uri}" if data.eval_uri else "nothing held out"
    packed = "packed" if data.packing else "one document a row"
    order = f"shuffled with seed {data.seed}" if data.shuffle else "in order"
    epochs = console.counted(data.epochs, "epoch") if data.epochs else "repeated"
    return f"{data.uri} ({held_out}); tokenizer {data.tokenizer}; {packed}, {order}, {epochs}"


def _train(plan: TrainingPlan) -> str:
    train = plan.train
    tokens = train.steps * train.global_batch * train.sequence_length
    steps = console.counted(train.steps, "step")
    sequences = console.counted(train.global_batch, "sequence")
    length = console.counted(train.sequence_length, "token")
    size = f"{steps} × {sequences} × {length} = {tokens:,} tokens"
    parts = f" in {train.microbatches} microbatches" if train.microbatches > 1 else ""
    evaluation = f"evaluated every {train.eval_every}" if train.eval_every else "evaluated at the end"
    return f"{size}{parts}; {train.compute_dtype}, remat {train.remat}" + (f"; {evaluation}" * bool(plan.data.eval_uri))


def _optim(plan: TrainingPlan) -> str:
    optim = plan.optim
    schedule = f"{optim.schedule}, warm-up {optim.warmup_steps}"
    if optim.decay_steps:
        schedule += f", decay {optim.decay_steps} to {optim.final_ratio:g} of it"
    clip = f"clipped at {optim.clip_norm:g}" if optim.clip_norm else "not clipped"
    return f"AdamW, learning rate {optim.learning_rate:g} ({schedule}); weight decay {optim.weight_decay:g}; {clip}"


def _checkpoint(plan: TrainingPlan) -> str:
    every = f"every {plan.checkpoint.every} steps and at the end" if plan.checkpoint.every else "at the end"
    return f"{every}, newest {plan.checkpoint.keep} kept, resume {plan.checkpoint.resume}"


def _job(plan: Plan) -> str:
    job = plan.job
    limit = f"at most {job.timeout_seconds:g} s" if job.timeout_seconds else "no time limit"
    variables = [f"{name}={value}" for name, value in {**job.env, **job.secrets}.items()]
    extras = [f"env {' '.join(variables)}"] * bool(variables) + [f"pip {' '.join(job.pip)}"] * bool(job.pip)
    return "; ".join([limit, f"{console.counted(job.max_failures, 'restart')}", *extras])


def _memory(plan: TrainingPlan) -> str:
    from tpuctl.plan.budget import gib

    budget = plan.budget
    parts = {
        "state": budget.state_bytes,
        "gradients": budget.gradient_bytes,
        "activations": budget.activation_bytes,
        "logits": budget.logit_bytes,
    }
    listed = ", ".join(f"{name} {gib(size)}" for name, size in parts.items() if size)
    return f"about {gib(budget.needed_bytes)} of {gib(budget.hbm_bytes)} per device ({listed})"
