"""How a language model lies on a host of batch inference: over how many of its devices, with how many KV pages. Pure.

Each host is a replica: prompts don't depend on one another, so hosts have nothing to tell each other.
"""

from __future__ import annotations

from tpuctl.modelspec import ModelSpec
from tpuctl.plan.budget import gib
from tpuctl.plan.held import HeldPages, HeldWeights
from tpuctl.plan.infer_schema import ReplicaPlan, TaskPlan
from tpuctl.plan.schema import SlicePlan
from tpuctl.recipe.origin import Findings
from tpuctl.topology import generation

# What serving has as its defaults, too.
_MEMORY_SHARE = 0.85
_PAGE_TOKENS = 64
_STEP_TOKENS = 512
# The engine's smallest shape with a prompt in it; one that doesn't divide over the devices is made larger.
_PROMPT_TOKENS = 32


def plan_replica(model: ModelSpec, task: TaskPlan, slices: SlicePlan, findings: Findings) -> ReplicaPlan:
    """A replica of the model on each host; what it can't be goes into ``findings``."""
    assert task.max_length is not None, "plan.infer_model settles it first"
    devices = slices.devices_per_host
    tensor = max(count for count in range(1, devices + 1) if _divides(model, count))
    kept = HeldPages(model=model, dtype=task.dtype, kv_dtype=task.kv_dtype, devices=tensor, page_size=_PAGE_TOKENS)
    kept.check("task.kv_dtype", findings=findings)
    page_bytes = kept.num_bytes
    held = HeldWeights(model=model, dtype=task.dtype, quantised=task.weights)
    memory = generation(slices.generation).hbm_bytes_per_device * tensor
    held.check("task.weights", hbm_bytes=memory, findings=findings)
    most = int(memory * _MEMORY_SHARE - held.num_bytes) // page_bytes
    sequence = -(-task.max_length // _PAGE_TOKENS)
    if most < sequence:
        _refuse(findings, held.num_bytes + sequence * page_bytes, devices=tensor, slices=slices)
    elif tensor < devices:
        findings.notes.append(f"{tensor} of the {devices} devices of a host are used: the model divides over no more")
    pages = max(1, min(most, task.batch_rows * sequence))
    if sequence <= pages < task.batch_rows * sequence:
        findings.notes.append(
            f"{pages} KV pages fit beside the weights: {pages // sequence} of {task.batch_rows} rows at a time "
            f"if each has {task.max_length} tokens"
        )
    return ReplicaPlan(
        tensor=tensor,
        page_size=_PAGE_TOKENS,
        num_pages=pages,
        min_step_tokens=tensor if _PROMPT_TOKENS % tensor == 0 else -(-_PROMPT_TOKENS // tensor) * tensor,
        max_step_tokens=max(_STEP_TOKENS, task.batch_rows),
    )


def _divides(model: ModelSpec, tensor: int) -> bool:
    """Whether heads, MLP and vocabulary divide over so many devices, and key heads over them or they over these."""
    whole = all(size % tensor == 0 for size in (model.num_heads, model.mlp_size, model.vocab_size))
    return whole and (model.num_kv_heads % tensor == 0 or tensor % model.num_kv_heads == 0)


def _refuse(findings: Findings, needed: int, *, devices: int, slices: SlicePlan) -> None:
    message = f"the model does not fit a host: {gib(needed)} of weights and pages for one row, over {devices} devices"
    several = ", and the model is not split over several" if slices.total_hosts > 1 else ""
    hint = f"each host is a replica{several}; take hosts with more chips, bfloat16, or a smaller task.max_length"
    findings.refuse("slice.topology", message, hint)
