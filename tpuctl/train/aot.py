"""Compiles a plan's train step for the TPU slice it names, with libtpu and no TPU, and says what came out.

Run by ``plan.compile`` as ``python -m tpuctl.train.aot``: a plan on stdin, one line of JSON on stdout. Always in a
process of its own, since libtpu ends the process on shapes it does not like.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import jax
from jax.experimental import topologies

from tpuctl.mesh import create_mesh
from tpuctl.plan.schema import SlicePlan, TrainingPlan, plan_loads
from tpuctl.train.hlo import read_program
from tpuctl.train.state import abstract_state
from tpuctl.train.step import abstract_batch, make_train_step


def compile_report(plan: TrainingPlan) -> dict[str, Any]:
    """The train step compiled for ``plan.slice``: memory, work and communication of one device and step."""
    mesh = create_mesh(plan.mesh, devices=target_devices(plan.slice))
    started = time.monotonic()
    # Pallas asks which TPU it is lowered for; with no TPU attached, the mesh is the answer.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = make_train_step(plan, mesh).lower(abstract_state(plan, mesh), abstract_batch(plan, mesh))
    compiled = lowered.compile()
    totals = read_program(compiled.as_text() or "")
    return {
        "devices": mesh.size,
        "seconds": round(time.monotonic() - started, 1),
        "hbm": _memory(compiled.memory_analysis()),
        **dataclasses.asdict(totals),
    }


def target_devices(target: SlicePlan) -> list[Any]:
    """The devices of a slice, or of several, that is not there."""
    options: dict[str, Any] = {}
    if target.generation == "v4" and target.devices_per_chip == 1:
        options["chip_config_name"] = "megacore"
    if target.slices > 1:
        options["num_slices"] = target.slices
    name = f"{target.generation}:{target.topology}"
    devices: list[Any] = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    return devices


def _memory(analysis: Any) -> dict[str, int]:
    parts = {
        name: int(getattr(analysis, f"{name}_size_in_bytes"))
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    # Outputs that alias a donated argument take no room of their own.
    return parts | {"peak": sum(parts.values()) - 2 * parts["alias"]}


if __name__ == "__main__":
    given = plan_loads(sys.stdin.read())
    assert isinstance(given, TrainingPlan), "only a training run has a step to compile"
    print(json.dumps(compile_report(given)))
