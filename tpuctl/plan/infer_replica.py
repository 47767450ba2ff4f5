"""How a language model lies on hosts of batch inference: over how many of their devices, with how many KV pages. Pure.

Prompts don't depend on one another, so hosts have nothing to tell each other: each is a replica where it holds the
model. Where none does, the hosts of a slice are one together.
"""

from __future__ import annotations

from tpuctl.modelspec import ModelSpec
from tpuctl.plan.budget import gib
from tpuctl.plan.held import HeldPages, HeldWeights
from tpuctl.plan.infer_schema import ReplicaPlace, ReplicaPlan, TaskPlan
from tpuctl.plan.mesh import undivided
from tpuctl.plan.schema import SlicePlan
from tpuctl.recipe.origin import Findings, Origin
from tpuctl.topology import generation

# What serving has as its defaults, too.
_MEMORY_SHARE = 0.85
_PAGE_TOKENS = 64
_STEP_TOKENS = 512
# The engine's smallest shape with a prompt in it; one that doesn't divide over the devices is made larger.
_PROMPT_TOKENS = 32


def plan_replica(
    model: ModelSpec, task: TaskPlan, slices: SlicePlan, *, per: ReplicaPlace | None, findings: Findings
) -> ReplicaPlan:
    """A replica of the model on each host or over each slice, as asked; else the first of the two that holds it.

    What it can't be goes into ``findings``.
    """
    tried = [_Trial(model, task, slices, per=place, origin=findings.origin) for place in _places(slices, per)]
    held = next((trial for trial in tried if not trial.findings.problems), None)
    if held is None:
        problems = [problem for trial in tried for problem in trial.findings.problems]
        findings.problems += [problem for at, problem in enumerate(problems) if problem not in problems[:at]]
        return tried[0].plan
    if held is not tried[0]:
        findings.notes.append(f"each slice is a replica: {tried[0].findings.problems[0].message}")
    findings.notes += held.findings.notes
    return held.plan


def _places(slices: SlicePlan, per: ReplicaPlace | None) -> list[ReplicaPlace]:
    """What a replica may have, the less first. A slice of one host is that host."""
    if slices.hosts == 1:
        return ["host"]
    return ["host", "slice"] if per is None else [per]


class _Trial:
    """The model laid on a host or over a slice, and what is to be said of that."""

    def __init__(
        self, model: ModelSpec, task: TaskPlan, slices: SlicePlan, *, per: ReplicaPlace, origin: Origin
    ) -> None:
        self.findings = Findings(origin=origin)
        self._model, self._task, self._slices, self._per = model, task, slices, per
        self._devices = slices.devices_per_host * (slices.hosts if per == "slice" else 1)
        self._tensor = self._devices if per == "slice" else _most_devices(model, self._devices)
        self._memory = generation(slices.generation).hbm_bytes_per_device * self._tensor
        self.plan = self._plan()

    def _plan(self) -> ReplicaPlan:
        self._check_division()
        tensor = self._tensor
        return ReplicaPlan(
            per=self._per,
            tensor=tensor,
            page_size=_PAGE_TOKENS,
            num_pages=self._num_pages(),
            min_step_tokens=tensor if _PROMPT_TOKENS % tensor == 0 else -(-_PROMPT_TOKENS // tensor) * tensor,
            max_step_tokens=max(_STEP_TOKENS, self._task.batch_rows),
        )

    def _check_division(self) -> None:
        """A slice's chips all take part: a host without a share could not follow. Of a host's some may rest."""
        if self._per == "slice":
            for message, hint in undivided(self._model, tensor=self._tensor):
                self.findings.refuse("task.replica", f"over a slice, {message}", f"{hint}, or another slice")
        elif self._tensor < self._devices:
            used = f"{self._tensor} of the {self._devices} devices of a host are used"
            self.findings.notes.append(f"{used}: the model divides over no more")

    def _num_pages(self) -> int:
        task = self._task
        assert task.max_length is not None, "plan.infer_model settles it first"
        kept = HeldPages(
            model=self._model,
            dtype=task.dtype,
            kv_dtype=task.kv_dtype,
            devices=self._tensor,
            page_size=_PAGE_TOKENS,
        )
        kept.check("task.kv_dtype", findings=self.findings)
        held = HeldWeights(model=self._model, dtype=task.dtype, quantised=task.weights)
        held.check("task.weights", hbm_bytes=self._memory, findings=self.findings)
        most = int(self._memory * _MEMORY_SHARE - held.num_bytes) // kept.num_bytes
        sequence = -(-task.max_length // _PAGE_TOKENS)
        if most < sequence:
            self._refuse(held.num_bytes + sequence * kept.num_bytes)
        pages = max(1, min(most, task.batch_rows * sequence))
        if sequence <= pages < task.batch_rows * sequence:
            self.findings.notes.append(
                f"{pages} KV pages fit beside the weights: {pages // sequence} of {task.batch_rows} rows at a time "
                f"if each has {task.max_length} tokens"
            )
        return pages

    def _refuse(self, needed: int) -> None:
        what = f"{gib(needed)} of weights and pages for one row, over {self._tensor} devices"
        self.findings.refuse("slice.topology", f"the model does not fit a {self._per}: {what}", self._hint())

    def _hint(self) -> str:
        less = "bfloat16, or a smaller task.max_length"
        if self._per == "slice":
            return f"take a larger slice, {less}"
        several = ', or task.replica = "slice"' * (self._slices.hosts > 1)
        return f"take hosts with more chips, {less}{several}"


def _most_devices(model: ModelSpec, devices: int) -> int:
    return max(count for count in range(1, devices + 1) if _divides(model, count))


def _divides(model: ModelSpec, tensor: int) -> bool:
    """Whether heads, MLP and vocabulary divide over so many devices, and key heads over them or they over these."""
    whole = all(size % tensor == 0 for size in (model.num_heads, model.mlp_size, model.vocab_size))
    return whole and (model.num_kv_heads % tensor == 0 or tensor % model.num_kv_heads == 0)
