"""Compiles the engine's step for TPU with libtpu and no TPU, for the case named: one line of JSON on stdout."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from tpuctl.engine.adapters import Adapters
from tpuctl.engine.attention import PagedLayout
from tpuctl.engine.batch import Bucket, SlotTable
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import RunnerOptions, StepProgram
from tpuctl.engine.sampling import SamplingRows
from tpuctl.mesh import create_mesh, named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.nn.params import init_params, logical_axes
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import LoraPlan

_SIZES: dict[str, Any] = {"vocab_size": 32_768, "hidden_size": 1024, "num_layers": 4, "mlp_size": 2816}
CASES: dict[str, tuple[ModelSpec, int]] = {
    "one-chip": (ModelSpec(name="a", num_heads=8, num_kv_heads=4, head_dim=128, **_SIZES), 1),
    "heads-of-64": (ModelSpec(name="b", num_heads=16, num_kv_heads=4, head_dim=64, **_SIZES), 1),
    "tensor-8": (ModelSpec(name="c", num_heads=16, num_kv_heads=8, head_dim=128, **_SIZES), 8),
    "shared-key-heads": (ModelSpec(name="d", num_heads=16, num_kv_heads=4, head_dim=128, **_SIZES), 8),
    "windows": (
        ModelSpec(
            name="e", num_heads=8, num_kv_heads=4, head_dim=128, sliding_window=1024, local_layers=(0, 2), **_SIZES
        ),
        1,
    ),
    "adapters": (ModelSpec(name="f", num_heads=16, num_kv_heads=4, head_dim=128, **_SIZES), 8),
}
ADAPTERS = {"adapters": Adapters(names=tuple("abcdefgh"), ranks=(16,) * 8, targets=tuple(TARGETS))}


def compiled(spec: ModelSpec, *, tensor: int, adapters: Adapters | None = None) -> dict[str, Any]:
    """The step with 64 sequences and 512 tokens: its kernels, memory and time to compile."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x4")
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=tensor), devices=topology.devices[:tensor])
    sizes: dict[str, Any] = {"max_length": 4096, "num_pages": 2048, "max_running": 64, "max_step_tokens": 512}
    options = EngineOptions(**sizes, page_size=64, adapters=adapters)
    program = StepProgram(spec, mesh=mesh, engine=options, options=RunnerOptions(dtype=jnp.bfloat16))
    batch = SlotTable(program.sizes, eos_ids=(), adapters=adapters).batch([], bucket=Bucket(tokens=512, rows=64))
    whole = NamedSharding(mesh, PartitionSpec())
    inputs = {
        "tokens": batch.tokens,
        "token_slots": batch.token_slots,
        "positions": batch.positions,
        "layout": PagedLayout(**batch.layout),
        "last": batch.last,
        "slots": batch.slots,
        "sampling": SamplingRows(**(program.abstract_nothing(64) | batch.sampling)),
        **({} if batch.adapters is None else {"adapters": batch.adapters}),
    }
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=whole), inputs)
    started = time.monotonic()
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = program.step.lower(_abstract_params(spec, mesh, program.lora), program.abstract_state(), inputs)
    done = lowered.compile()
    memory: Any = done.memory_analysis()
    pages = program.abstract_state()["pages"]
    return {
        "kernels": (done.as_text() or "").count("tpu_custom_call"),
        "seconds": round(time.monotonic() - started, 1),
        "page_bytes": pages.size * 2 // tensor,
        "temp_bytes": memory.temp_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
    }


def _abstract_params(spec: ModelSpec, mesh: jax.sharding.Mesh, lora: LoraPlan | None) -> Any:
    shapes = jax.eval_shape(lambda: init_params(spec, jax.random.key(0), lora=lora))
    axes = logical_axes(spec, tensor=mesh.shape["tensor"], lora=lora)
    return jax.tree.map(
        lambda names, x: jax.ShapeDtypeStruct(
            x.shape, jnp.bfloat16, sharding=named_sharding(mesh, names, shape=x.shape)
        ),
        axes,
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


if __name__ == "__main__":
    spec, tensor = CASES[sys.argv[1]]
    print(json.dumps(compiled(spec, tensor=tensor, adapters=ADAPTERS.get(sys.argv[1]))))
