"""Compiles the engine's step for TPU with libtpu and no TPU, for the case named: one line of JSON on stdout."""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from tests.tpu_aot.hbm import moved
from tpuctl.engine.adapters import Adapters
from tpuctl.engine.attention import PagedLayout
from tpuctl.engine.batch import Bucket, SlotTable
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import RunnerOptions, StepProgram
from tpuctl.engine.sampling import SamplingRows
from tpuctl.mesh import create_mesh
from tpuctl.modelspec import PRESETS, ModelSpec
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.nn.params import param_shapes, param_shardings
from tpuctl.nn.quantised import is_quantised
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import LoraPlan, QuantisedDtype
from tpuctl.train import hlo

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
    "three-key-heads": (ModelSpec(name="g", num_heads=9, num_kv_heads=3, head_dim=64, **_SIZES), 1),
}
ADAPTERS = {"adapters": Adapters(names=tuple("abcdefgh"), ranks=(16,) * 8, targets=tuple(TARGETS))}
LARGE = {
    "qwen3-4b": (PRESETS["qwen3-4b"], 8),
    "llama3-8b": (PRESETS["llama3-8b"], 4),
    "llama3-8b over 8": (PRESETS["llama3-8b"], 8),
    "llama3.1-70b": (PRESETS["llama3.1-70b"], 16),
}
"""Whose weights and pages are most of what a step reads that only decodes."""

_MATRIX = 100_000
_POINTERS = ("parameter", "tuple", "get-tuple-element", "bitcast")


def compiled(
    spec: ModelSpec,
    *,
    tensor: int,
    tokens: int = 512,
    adapters: Adapters | None = None,
    kinds: RunnerOptions,
) -> dict[str, Any]:
    """The step with 64 sequences and so many tokens: its kernels, memory and time to compile."""
    chips = "v6e:4x4" if tensor > 8 else "v6e:2x4"
    topology = topologies.get_topology_desc(platform="tpu", topology_name=chips)
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=tensor), devices=topology.devices[:tensor])
    sizes: dict[str, Any] = {"max_length": 4096, "num_pages": 2048, "max_running": 64, "max_step_tokens": 512}
    options = EngineOptions(**sizes, page_size=64, adapters=adapters)
    program = StepProgram(spec, mesh=mesh, engine=options, options=kinds)
    batch = SlotTable(program.sizes, eos_ids=(), adapters=adapters).batch([], bucket=Bucket(tokens=tokens, rows=64))
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
        params = _abstract_params(spec, mesh, program.lora, kinds.quantised)
        lowered = program.step.lower(params, program.abstract_state(), inputs)
    done = lowered.compile()
    memory: Any = done.memory_analysis()
    text = done.as_text() or ""
    pages = program.abstract_state()["pages"]
    return {
        "kernels": text.count("tpu_custom_call"),
        "seconds": round(time.monotonic() - started, 1),
        "page_bytes": _shard_size(pages) * pages.dtype.itemsize,
        "token_bytes": _shard_size(pages) * pages.dtype.itemsize // ((options.num_pages + 1) * options.page_size),
        "as_large_as_pages": _written(text, at_least=_shard_size(pages)),
        "temp_bytes": memory.temp_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "weight_bytes": sum(_shard_size(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)),
        "looked_up_bytes": 0 if spec.tied_embedding else _shard_size(params["embedding"]) * 2,
        "moved": [(item.of, item.nbytes) for item in moved(text, pages=_shard_size(pages))],
        "copied": _copied(text, {_shard_size(leaf) for leaf in jax.tree.leaves(params["layers"])}),
    }


def _abstract_params(
    spec: ModelSpec, mesh: jax.sharding.Mesh, lora: LoraPlan | None, quantised: QuantisedDtype | None
) -> Any:
    def placed(shape: Any, place: Any) -> Any:
        if is_quantised(shape):
            return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shape, place)
        return jax.ShapeDtypeStruct(shape.shape, jnp.bfloat16, sharding=place)

    shapes = param_shapes(spec, lora=lora, quantised=quantised)
    shardings = param_shardings(spec, mesh, lora=lora, quantised=quantised)
    return jax.tree.map(placed, shapes, shardings, is_leaf=is_quantised)


def _shard_size(leaf: jax.ShapeDtypeStruct) -> int:
    assert leaf.sharding is not None
    return math.prod(leaf.sharding.shard_shape(leaf.shape))


def _copied(program: str, stacks: set[int]) -> list[str]:
    """Dtypes of what each layer writes that is as large as one of its matrices: copies of these, converted or not."""
    computations, entry = hlo._parse(program)
    runs = hlo._run_counts(computations, entry)
    instructions = [(name, instruction) for name, body in computations.items() for instruction in body]
    inside = {name for _, fusion in instructions if fusion.opcode == "fusion" for name in hlo._callees(fusion)}
    written = [
        shape
        for name, instruction in instructions
        if runs[name] > 1 and name not in inside and instruction.opcode not in _POINTERS
        for shape in instruction.shapes
        if math.prod(shape.dims) > _MATRIX and math.prod(shape.dims) * runs[name] in stacks
    ]
    return sorted({shape.dtype for shape in written})


def _written(program: str, *, at_least: int) -> list[str]:
    """Dtypes of all arrays of so many numbers that the program makes or changes."""
    computations, _ = hlo._parse(program)
    shapes = {
        shape
        for body in computations.values()
        for instruction in body
        if instruction.opcode not in _POINTERS
        for shape in instruction.shapes
    }
    return sorted({shape.dtype for shape in shapes if math.prod(shape.dims) >= at_least})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES | LARGE)
    parser.add_argument("--weights")
    parser.add_argument("--kv")
    given = parser.parse_args()
    spec, tensor = (CASES | LARGE)[given.case]
    tokens = 64 if given.case in LARGE else 512
    kinds = RunnerOptions(quantised=given.weights, kv_dtype=given.kv)
    adapters = ADAPTERS.get(given.case)
    print(json.dumps(compiled(spec, tensor=tensor, tokens=tokens, adapters=adapters, kinds=kinds)))
