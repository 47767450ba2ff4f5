"""CPU seconds per training step, start-up and memory, on one fixed job; beside Levanter's and MaxText's.

    python -m tests.benchmarks.train_step_cpu [--rounds 5] [--steps 25] [--levanter PYTHON] [--maxtext PYTHON]

The job: a Llama block of 4 layers, width 256, 4 heads of 64, MLP 1024, vocabulary 8192 with a head of its own
(8,390,912 weights), 8 rows of 256 tokens, f32, full rematerialisation, weights sharded over 4 host devices, AdamW.
The systems take turns, one process each per round, so that both see the same machine; medians over the rounds.
Levanter comes from ``uv pip install --prerelease=allow marin-levanter "jax[cpu]"`` into an environment of its own,
MaxText from ``uv pip install maxtext``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

ROWS, LENGTH, VOCAB, DEVICES, WARM_UP = 8, 256, 8192, 4, 5
STARTED = "TRAIN_STEP_CPU_STARTED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One process: medians over its steps after warm-up."""

    cpu_seconds_per_step: float
    seconds_per_step: float
    first_step_seconds: float
    peak_rss_mib: float


def main() -> None:
    """Measures, and prints one table."""
    options = _options()
    if options.child:
        print(json.dumps(_measure_here(options.steps)))
        return
    commands = {"tpuctl": [sys.executable, "-m", "tests.benchmarks.train_step_cpu", "--child"]}
    for peer, python in (("levanter", options.levanter), ("maxtext", options.maxtext)):
        if python:
            commands[peer] = [python, str(Path(__file__).with_name(f"{peer}_step_cpu.py"))]
    rounds: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            rounds[name].append(_run([*command, "--steps", str(options.steps)]))
    _print_table(rounds)


def timed_steps(step: object, *, steps: int) -> dict[str, float]:
    """Calls ``step()``, which must wait for its result, and measures this process."""
    seconds, cpu, first = [], [], 0.0
    for index in range(steps + WARM_UP):
        wall_before, cpu_before = time.perf_counter(), time.process_time()
        step()  # type: ignore[operator]
        seconds.append(time.perf_counter() - wall_before)
        cpu.append(time.process_time() - cpu_before)
        first = first if index else time.time() - float(os.environ[STARTED])
    return {
        "cpu_seconds_per_step": statistics.median(cpu[WARM_UP:]),
        "seconds_per_step": statistics.median(seconds[WARM_UP:]),
        "first_step_seconds": first,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes per system")
    parser.add_argument("--steps", type=int, default=25, help="timed steps per process")
    parser.add_argument("--levanter", metavar="PYTHON", help="the interpreter of an environment with Levanter")
    parser.add_argument("--maxtext", metavar="PYTHON", help="the interpreter of an environment with MaxText")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(command: list[str]) -> Measured:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        STARTED: str(time.time()),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _measure_here(steps: int) -> dict[str, float]:
    import jax
    import numpy as np

    from tests.fakes.tiny_training import OPTIM, make_batch, make_plan
    from tpuctl.mesh import create_mesh
    from tpuctl.modelspec import ModelSpec
    from tpuctl.train.state import init_state
    from tpuctl.train.step import make_global_batch, make_train_step

    model = ModelSpec(
        name="s",
        vocab_size=VOCAB,
        hidden_size=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        mlp_size=1024,
        tied_embedding=False,
    )
    mesh_axes = {"fsdp": DEVICES}
    plan = make_plan(model=model, optim=OPTIM, mesh=mesh_axes, global_batch=ROWS, sequence_length=LENGTH, remat="full")
    mesh = create_mesh(plan.mesh)
    state = init_state(plan, mesh)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == 8_390_912
    batch = make_batch(rows=ROWS, length=LENGTH, vocab=VOCAB, pad=0)
    placed = make_global_batch(batch, mesh, global_batch=ROWS)
    train_step = make_train_step(plan, mesh)
    losses: list[float] = []

    def step() -> None:
        nonlocal state
        state, metrics = train_step(state, placed)
        jax.block_until_ready(state)
        losses.append(float(metrics["loss"]))

    measured = timed_steps(step, steps=steps)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    return measured


def _print_table(rounds: dict[str, list[Measured]]) -> None:
    names = [field.name for field in fields(Measured)]
    print(f"{'':22}" + "".join(f"{name.replace('_', ' '):>24}" for name in names))
    for system, measured in rounds.items():
        medians = [statistics.median(getattr(one, name) for one in measured) for name in names]
        print(f"{system:22}" + "".join(f"{value:24.3f}" for value in medians))
    for peer in [name for name in rounds if name != "tpuctl"]:
        pairs = zip(rounds["tpuctl"], rounds[peer], strict=True)
        ratios = [[getattr(ours, name) / getattr(theirs, name) for name in names] for ours, theirs in pairs]
        medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
        print(f"{'ratio to ' + peer:22}" + "".join(f"{value:24.3f}" for value in medians))
    processes = len(next(iter(rounds.values())))
    print(f"\n{processes} processes per system; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end.")


if __name__ == "__main__":
    main()
