"""What the loop costs: steps per second inside it, against a bare loop over the same compiled step.

    python -m tests.benchmarks.loop_overhead [--pairs 7] [--steps 100] [--shape hard|small|all]

The bare loop puts the same host batches on the devices, steps, and never looks at a metric. Ours takes them from a
feed, votes, reads every step's metrics, looks after checkpoints and the watchdog, and writes a step event every ten
steps. The two run in turns, and the medians over the pairs are compared; the aim is a ratio of at least 0.98. On a
CPU Python competes with the step for the cores, so short steps (``hard``) show more of it than any TPU would.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np

from tests.fakes.tiny_training import SPEC, make_batch, make_plan
from tpuctl.mesh import create_mesh
from tpuctl.modelspec import ModelSpec
from tpuctl.plan.schema import TrainingPlan
from tpuctl.runs.events import Event
from tpuctl.train import loop
from tpuctl.train.batch import HostBatch
from tpuctl.train.checkpoint import Checkpoints
from tpuctl.train.program import Program, program_for
from tpuctl.train.provenance import provenance_of
from tpuctl.train.task import Task

WARM_UP_STEPS = 20
NUM_BATCHES = 8
AIM = 0.98


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model and its batches."""

    name: str
    model: ModelSpec
    sequence_length: int


SHAPES = {
    "hard": Shape(name="hard", model=SPEC, sequence_length=32),
    "small": Shape(
        name="small",
        model=replace(SPEC, vocab_size=2048, hidden_size=128, num_layers=4, head_dim=32, mlp_size=512),
        sequence_length=128,
    ),
}


class MemoryFeed:
    """The same few batches again and again."""

    def __init__(self, batches: list[HostBatch]) -> None:
        self._batches = batches

    def train(self, _cursor: np.ndarray) -> Iterator[HostBatch]:
        return cycle(self._batches)

    def evaluate(self) -> Iterator[HostBatch]:
        return iter(())


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One shape, compiled; ``state`` is where every run begins."""

    plan: TrainingPlan
    program: Program
    step: Any
    state: Any
    batches: list[HostBatch]

    def begin(self) -> Any:
        return jax.tree.map(jnp.copy, self.state)


def prepare(shape: Shape, *, steps: int) -> Bench:
    plan = make_plan(
        model=shape.model,
        mesh={"fsdp": jax.device_count()},
        steps=WARM_UP_STEPS + steps,
        sequence_length=shape.sequence_length,
        log_every=10,
    )
    program = program_for(plan, create_mesh(plan.mesh))
    rows = [
        make_batch(rows=8, length=shape.sequence_length, vocab=shape.model.vocab_size, seed=seed)
        for seed in range(NUM_BATCHES)
    ]
    return Bench(
        plan=plan,
        program=program,
        step=program.train_step.lower(program.abstract_state, program.abstract_batch).compile(),
        state=program.init(),
        batches=rows,
    )


def bare(bench: Bench) -> float:
    """Steps per second of a loop that does nothing else."""
    batches = (bench.program.assemble(batch, False) for batch in cycle(bench.batches))
    state = bench.begin()
    for batch in islice(batches, WARM_UP_STEPS):
        state, metrics = bench.step(state, batch)
    jax.block_until_ready(metrics)
    steps = bench.plan.train.steps - WARM_UP_STEPS
    began = time.perf_counter()
    for batch in islice(batches, steps):
        state, metrics = bench.step(state, batch)
    jax.block_until_ready((state, metrics))
    return steps / (time.perf_counter() - began)


def ours(bench: Bench) -> float:
    """Steps per second inside the loop, from the end of the warm-up to the last step."""
    told: dict[int, float] = {}

    def emit(item: Event) -> None:
        if item["event"] == "step":
            told[item["step"]] = time.perf_counter()

    with tempfile.TemporaryDirectory() as directory:
        task = Task(
            plan=bench.plan,
            program=replace(bench.program, init=bench.begin),
            feed=MemoryFeed(bench.batches),
            checkpoints=Checkpoints(str(Path(directory)), provenance=provenance_of(bench.plan), keep=1),
            emit=emit,
            stop=lambda: None,
            simulated=True,
        )
        loop.run(task)
    steps = bench.plan.train.steps
    return (steps - WARM_UP_STEPS) / (told[steps] - told[WARM_UP_STEPS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    arguments = parser.parse_args()
    names = SHAPES if arguments.shape == "all" else [arguments.shape]
    print(f"{'shape':8}{'bare steps/s':>14}{'ours steps/s':>14}{'ratio':>8}{'pairs low..high':>20}   aim {AIM}")
    for name in names:
        bench = prepare(SHAPES[name], steps=arguments.steps)
        pairs = [measure_pair(bench, ours_first=number % 2 == 1) for number in range(arguments.pairs)]
        ratios = [inside / alone for alone, inside in pairs]
        alone, inside = (statistics.median(side) for side in zip(*pairs, strict=True))
        spread = f"{min(ratios):.3f}..{max(ratios):.3f}"
        print(f"{name:8}{alone:14.2f}{inside:14.2f}{statistics.median(ratios):8.3f}{spread:>20}")


def measure_pair(bench: Bench, *, ours_first: bool) -> tuple[float, float]:
    """One of each, in turns first, so that a machine that warms up or slows down favours neither."""
    if ours_first:
        inside = ours(bench)
        return bare(bench), inside
    return bare(bench), ours(bench)


if __name__ == "__main__":
    main()
