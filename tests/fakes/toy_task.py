"""Plans and tasks around the toy model: a whole attempt at a run, without data files or a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from tests.fakes.toy_training import Toy, ToyFeed, make_mesh, toy_program
from tpuctl.modelspec import ModelSpec
from tpuctl.plan.schema import (
    BudgetPlan,
    CheckpointPlan,
    DataPlan,
    ExpectPlan,
    JobPlan,
    MeshPlan,
    OptimPlan,
    Plan,
    RunPlan,
    SlicePlan,
    TrainPlan,
)
from tpuctl.runs.events import Event
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.provenance import provenance_of
from tpuctl.train.stopping import StopReason
from tpuctl.train.task import Task


def toy_plan(directory: Path, **changes: Any) -> Plan:
    """A plan of 12 steps on one host with 4 devices; ``train__steps=20`` changes one field."""
    plan = Plan(
        kind="train",
        entrypoint="tpuctl.entrypoints.train",
        tpuctl_version="0",
        run=RunPlan(name="toy", directory=str(directory), shared=False),
        slice=SlicePlan(
            generation="v6e",
            accelerator_type="TPU-V6E",
            pod_type="v6e-4",
            topology="2x2",
            machine="ct6e-standard-4t",
            slices=1,
            hosts=1,
            chips=4,
            chips_per_host=4,
            devices_per_chip=1,
        ),
        mesh=MeshPlan(slice=1, data=4, fsdp=1, tensor=1),
        model=ModelSpec(
            name="toy",
            vocab_size=32,
            hidden_size=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            mlp_size=8,
        ),
        data=DataPlan(
            uri="toy",
            eval_uri="toy-held-out",
            text_column="text",
            tokenizer="bytes",
            packing=True,
            ragged="drop",
            epochs=0,
            shuffle=True,
            seed=0,
            readers_per_host=1,
        ),
        optim=OptimPlan(
            learning_rate=0.05,
            schedule="cosine",
            warmup_steps=5,
            decay_steps=35,
            final_ratio=0.0,
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            clip_norm=None,
        ),
        train=TrainPlan(
            steps=12,
            global_batch=8,
            microbatches=1,
            sequence_length=16,
            seed=0,
            compute_dtype="float32",
            remat="none",
            z_loss=0.0,
            dropout=0.1,
            log_every=1,
            eval_every=0,
            eval_batches=0,
        ),
        checkpoint=CheckpointPlan(every=4, keep=3, resume="auto"),
        job=JobPlan(
            env={},
            secrets={},
            pip=(),
            max_failures=0,
            timeout_seconds=None,
            start_timeout_seconds=60.0,
            stop_grace_seconds=60.0,
        ),
        expect=ExpectPlan(max_eval_loss=None, max_bits_per_byte=None),
        budget=BudgetPlan(
            parameters=0, hbm_bytes=0, state_bytes=0, gradient_bytes=0, activation_bytes=0, logit_bytes=0
        ),
    )
    for path, value in changes.items():
        section, field = path.split("__")
        plan = dataclasses.replace(plan, **{section: dataclasses.replace(getattr(plan, section), **{field: value})})
    return plan


class Run:
    """One attempt at a run of the toy: its task, and the events it told."""

    def __init__(
        self,
        plan: Plan,
        *,
        toy: Toy | None = None,
        devices: list[Any] | None = None,
        length: list[int] | None = None,
        job: str = "job-1",
    ) -> None:
        self.events: list[Event] = []
        self.asked_to_stop_at: int | None = None
        mesh = make_mesh(devices or jax.devices()[:4])
        rows = host_rows(plan.train.global_batch)
        self.task = Task(
            plan=plan,
            program=toy_program(mesh, toy or Toy(rows=plan.train.global_batch)),
            feed=ToyFeed(rows, length=length),
            checkpoints=Checkpoints(
                f"{plan.run.directory}/checkpoints", provenance=provenance_of(plan, job=job), keep=plan.checkpoint.keep
            ),
            emit=self.events.append,
            stop=self._stop,
            simulated=True,
        )

    def told(self, name: str, field: str = "step") -> list[Any]:
        """One field of all events of a name."""
        return [item[field] for item in self.events if item["event"] == name]

    def losses(self) -> dict[int, float]:
        """The loss of each step that was told."""
        return dict(zip(self.told("step"), self.told("step", "loss"), strict=True))

    def _stop(self) -> StopReason | None:
        done = max(self.told("step"), default=0)
        is_due = self.asked_to_stop_at is not None and done >= self.asked_to_stop_at
        return StopReason.REQUESTED if is_due else None


def host_rows(global_batch: int) -> range:
    """This process's rows of the global batch, where all processes have equally many devices."""
    share = global_batch // jax.process_count()
    return range(jax.process_index() * share, (jax.process_index() + 1) * share)
