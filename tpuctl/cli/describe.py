"""What a plan of each kind says of itself beyond what all have: one line per part."""

from __future__ import annotations

from tpuctl.plan.budget import gib
from tpuctl.plan.schema import InferJob, TrainJob


def describe_train(plan: TrainJob) -> list[tuple[str, str]]:
    """The parts of a training run."""
    mesh = plan.mesh
    return [
        ("mesh", f"slice {mesh.slice} · data {mesh.data} · fsdp {mesh.fsdp} · tensor {mesh.tensor}"),
        ("model", _model(plan)),
        ("weights", _weights(plan)),
        ("data", _data(plan)),
        ("train", _train(plan)),
        ("optim", _optim(plan)),
        ("checkpoint", _checkpoint(plan)),
        ("memory", _memory(plan)),
    ]


def describe_infer(plan: InferJob) -> list[tuple[str, str]]:
    """The parts of a batch inference job."""
    data, task, output = plan.data, plan.task, plan.output
    columns = f"columns {', '.join(data.columns)}" if data.columns else "all columns"
    limit = f", the first {data.limit:,} rows" if data.limit else ""
    inputs = ", ".join(task.inputs) or "all columns that can be arrays"
    batches = f"batches of {task.batch_rows} rows, ragged end {task.ragged}"
    bad = "fail the job" if output.bad_rows == "fail" else f"go to quarantine, at most {output.max_quarantine}"
    return [
        ("data", f"{data.uri} ({columns}{limit})"),
        ("task", f"{task.kind} {task.function} on {inputs}; {batches}"),
        ("output", f"{output.uri}, mode {output.mode}; at most {output.rows_per_part:,} rows a part; bad rows {bad}"),
    ]


def _model(plan: TrainJob) -> str:
    model = plan.model
    heads = f"{model.num_heads}/{model.num_kv_heads} heads × {model.head_dim}"
    sizes = f"hidden {model.hidden_size}, {model.num_layers} layers, {heads}, mlp {model.mlp_size}"
    return f"{model.name}: {plan.budget.parameters:,} parameters; {sizes}, vocabulary {model.vocab_size}"


def _weights(plan: TrainJob) -> str:
    if plan.weights is None:
        return f"drawn from seed {plan.train.seed}"
    return f"{plan.weights.uri} ({plan.weights.family}); a resumed run has its checkpoint's"


def _data(plan: TrainJob) -> str:
    data = plan.data
    held_out = f"held out {data.eval_uri}" if data.eval_uri else "nothing held out"
    packed = "packed" if data.packing else "one document a row"
    order = f"shuffled with seed {data.seed}" if data.shuffle else "in order"
    epochs = f"{data.epochs} epochs" if data.epochs else "repeated"
    return f"{data.uri} ({held_out}); tokenizer {data.tokenizer}; {packed}, {order}, {epochs}"


def _train(plan: TrainJob) -> str:
    train = plan.train
    tokens = train.steps * train.global_batch * train.sequence_length
    size = f"{train.steps} steps × {train.global_batch} sequences × {train.sequence_length} tokens = {tokens:,} tokens"
    parts = f" in {train.microbatches} microbatches" if train.microbatches > 1 else ""
    evaluation = f"evaluated every {train.eval_every}" if train.eval_every else "evaluated at the end"
    return f"{size}{parts}; {train.compute_dtype}, remat {train.remat}" + (f"; {evaluation}" * bool(plan.data.eval_uri))


def _optim(plan: TrainJob) -> str:
    optim = plan.optim
    schedule = f"{optim.schedule}, warm-up {optim.warmup_steps}"
    if optim.decay_steps:
        schedule += f", decay {optim.decay_steps} to {optim.final_ratio:g} of it"
    clip = f"clipped at {optim.clip_norm:g}" if optim.clip_norm else "not clipped"
    return f"AdamW, learning rate {optim.learning_rate:g} ({schedule}); weight decay {optim.weight_decay:g}; {clip}"


def _checkpoint(plan: TrainJob) -> str:
    every = f"every {plan.checkpoint.every} steps and at the end" if plan.checkpoint.every else "at the end"
    return f"{every}, newest {plan.checkpoint.keep} kept"


def _memory(plan: TrainJob) -> str:
    budget = plan.budget
    parts = {
        "state": budget.state_bytes,
        "gradients": budget.gradient_bytes,
        "activations": budget.activation_bytes,
        "logits": budget.logit_bytes,
    }
    listed = ", ".join(f"{name} {gib(size)}" for name, size in parts.items())
    return f"about {gib(budget.needed_bytes)} of {gib(budget.hbm_bytes)} per device ({listed})"
