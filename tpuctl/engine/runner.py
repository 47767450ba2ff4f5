"""The jitted step and what it lives on: weights, KV pages and the tokens last drawn, which stay on the devices.

The only file of the room that jits. A step takes small arrays and gives back tokens, which the next step can use
before the host has seen them. Pages are donated: each step writes to the ones it was given.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuctl.engine.attention import (
    QUERY_BLOCK,
    PagedKernel,
    PagedLayout,
    PageShape,
    heads_axis,
    kernel_for,
    pages_array,
)
from tpuctl.engine.batch import EXPLAINED_ROWS, BatchSizes, CompiledShape, SlotTable, StepBatch, StepResult
from tpuctl.engine.bounds import MAX_BIAS
from tpuctl.engine.chain import Chain
from tpuctl.engine.kept import page_dtype
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.placement import in_groups, place
from tpuctl.engine.sampling import Explained, SamplingRows
from tpuctl.engine.step import Made, Step
from tpuctl.mesh import RULES, mesh_axis
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.params import ParamTree, logical_axes
from tpuctl.nn.partition import Partition
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerOptions:
    """How the step runs on the devices.

    Attributes:
        dtype: Of weights, activations and pages.
        quantised: What the parameters that may be are quantised to; ``None`` for as they are.
        kv_dtype: What pages keep keys and values as, if not in ``dtype``.
        kernel: Attention; ``None`` takes the platform's.
    """

    dtype: Any = jnp.bfloat16
    quantised: QuantisedDtype | None = None
    kv_dtype: KvDtype | None = None
    kernel: PagedKernel | None = None


class Runner:
    """One model on this process' part of a mesh, with its pages."""

    def __init__(
        self, spec: ModelSpec, params: ParamTree, *, mesh: Mesh, engine: EngineOptions, options: RunnerOptions
    ) -> None:
        """Place the weights and make the pages.

        Args:
            spec: The model.
            params: Its parameters, numpy or jax, of any dtype; quantised as ``options`` say, and with those of
                ``engine.adapters`` where it has any.
            mesh: ``tensor`` is split over; the other axes must be 1.
            engine: Sizes.
            options: How to run.

        Raises:
            MeshError: The model does not divide over the mesh.
        """
        self.program = StepProgram(spec, mesh=mesh, engine=engine, options=options)
        self.engine = engine
        placed = place(params, self.program.axes, mesh=mesh, dtype=options.dtype)
        self._params = in_groups(spec, placed) if self.program.chained else placed
        self._state = self.program.empty_state()
        self._nothing = {bucket.rows: self.program.nothing(bucket.rows) for bucket in buckets(engine)}

    def warm_up(self) -> Iterator[CompiledShape]:
        """Compile every shape, one for each item, by running a step that changes nothing."""
        table = SlotTable(self.program.sizes, eos_ids=(), adapters=self.engine.adapters)
        for bucket in buckets(self.engine):
            start = time.perf_counter()
            launched = self.launch(table.batch([], bucket=bucket))
            nowhere = np.zeros(0, np.int32)
            self.explain(launched, places=nowhere, targets=nowhere)
            yield CompiledShape(bucket=bucket, seconds=time.perf_counter() - start)

    def launch(self, batch: StepBatch) -> Made:
        """See ``StepRunner``."""
        for slot, counts in batch.counts.items():
            self._state = self.program.set_counts(self._state, np.int32(slot), counts)
        inputs = {
            "tokens": batch.tokens,
            "token_slots": batch.token_slots,
            "positions": batch.positions,
            "layout": PagedLayout(**batch.layout),
            "last": batch.last,
            "slots": batch.slots,
            "sampling": SamplingRows(**(self._nothing[batch.bucket.rows] | batch.sampling)),
            **({} if batch.adapters is None else {"adapters": batch.adapters}),
        }
        made: Made
        self._state, made = self.program.step(self._params, self._state, inputs)
        made.tokens.copy_to_host_async()
        return made

    def fetch(self, launched: Made, *, explained: bool) -> StepResult:
        """See ``StepRunner``."""
        tokens = np.asarray(launched.tokens)
        return _result(tokens, launched.explained) if explained else StepResult(tokens=tokens)

    def explain(self, launched: Made, *, places: np.ndarray, targets: np.ndarray) -> StepResult:
        """See ``StepRunner``. At most ``EXPLAINED_ROWS`` at a time."""
        padding = (0, EXPLAINED_ROWS - len(places))
        at, wanted = np.pad(places, padding), np.pad(targets, padding)
        explained = self.program.explain(self._params, launched.hidden, at, wanted)
        return _result(targets, explained)


class StepProgram:
    """The pure functions of a step, jitted for a model on a mesh. Knows shapes, and needs no chips to compile."""

    def __init__(self, spec: ModelSpec, *, mesh: Mesh, engine: EngineOptions, options: RunnerOptions) -> None:
        platform = mesh.devices.flat[0].platform
        self.spec, self.mesh, self.options, self.engine = spec, mesh, options, engine
        self.kernel = options.kernel or kernel_for(platform)
        self.chained = platform == "cpu" and mesh.size == 1
        self.partition = Partition(tensor=mesh_axis(mesh, "tensor"))
        self.lora = None if engine.adapters is None else engine.adapters.lora
        self.axes = logical_axes(spec, tensor=self.partition.tensor.size, lora=self.lora, quantised=options.quantised)
        self.sizes = batch_sizes(spec, engine)
        self.page_shape = PageShape(
            num_layers=spec.num_layers,
            num_pages=engine.num_pages + 1,
            page_size=engine.page_size,
            kv_heads=max(spec.num_kv_heads // self.partition.tensor.size, 1),
            head_dim=spec.head_dim,
            dtype=page_dtype(options.kv_dtype, dtype=options.dtype),
        )
        whole, params, state = PartitionSpec(), self.param_specs(), self.state_specs()
        step = Step(
            spec=spec,
            partition=self.partition,
            pages=self.page_shape,
            kernel=self.kernel,
            real_vocab=engine.real_vocab,
            adapters=engine.adapters,
        )
        if self.chained:
            chain = Chain(step)
            self.step, self.explain = chain.run, chain.explain
        else:
            self.step = jax.jit(self._mapped(step.run, (params, state, whole), (state, whole)), donate_argnums=1)
            explain = self._mapped(step.explain, (params, whole, whole), whole)
            self.explain = jax.jit(lambda params, hidden, places, targets: explain(params, hidden[places], targets))
        self.set_counts = jax.jit(_set_counts, donate_argnums=0)

    def param_specs(self) -> Any:
        """How each weight is split."""
        if self.chained:
            return PartitionSpec()
        return jax.tree.map(RULES.spec, self.axes, is_leaf=lambda node: isinstance(node, tuple))

    def state_specs(self) -> dict[str, PartitionSpec]:
        """How pages, last tokens and token counts are split."""
        pages = PartitionSpec(*[None] * heads_axis(self.kernel), "tensor")
        return {"pages": pages, "last": PartitionSpec(), "counts": PartitionSpec(None, "tensor")}

    def abstract_state(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and shardings of what a step carries to the next."""
        pages = pages_array(self.page_shape, self.kernel)
        sizes = list(pages.shape)
        sizes[heads_axis(self.kernel)] *= self.partition.tensor.size
        slots = self.engine.max_running + 1
        shapes = {
            "pages": jax.ShapeDtypeStruct(tuple(sizes), pages.dtype),
            "last": jax.ShapeDtypeStruct((slots,), jnp.int32),
            "counts": jax.ShapeDtypeStruct((slots, self.spec.vocab_size), jnp.int32),
        }
        specs = self.state_specs()
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, specs[name]))
            for name, x in shapes.items()
        }

    def empty_state(self) -> dict[str, Array]:
        """The state before the first step."""
        return {
            name: jax.jit(functools.partial(jnp.zeros, x.shape, x.dtype), out_shardings=x.sharding)()
            for name, x in self.abstract_state().items()
        }

    def abstract_nothing(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of what only some steps send: biases and masks."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        words = -(-self.spec.vocab_size // 32)
        return {
            "bias_ids": jax.ShapeDtypeStruct((rows, MAX_BIAS), jnp.int32, sharding=whole),
            "bias": jax.ShapeDtypeStruct((rows, MAX_BIAS), jnp.float32, sharding=whole),
            "allowed": jax.ShapeDtypeStruct((rows, words), jnp.int32, sharding=whole),
        }

    def nothing(self, rows: int) -> dict[str, Array]:
        """What stands for these in the other steps, which do not look at it; on the devices, so it is sent once."""
        shapes = self.abstract_nothing(rows)
        return {name: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding) for name, x in shapes.items()}

    def _mapped(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        if self.mesh.size == 1:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def batch_sizes(spec: ModelSpec, engine: EngineOptions) -> BatchSizes:
    """How large the arrays of a step are; for who makes them without a runner of its own, too."""
    return BatchSizes(
        max_running=engine.max_running,
        pages_per_sequence=engine.pages_per_sequence,
        page_size=engine.page_size,
        scratch_page=engine.num_pages,
        query_block=QUERY_BLOCK,
        vocab_size=spec.vocab_size,
    )


def _set_counts(state: dict[str, Array], slot: Array, counts: Array) -> dict[str, Array]:
    return state | {"counts": state["counts"].at[slot].set(counts)}


def _result(tokens: np.ndarray, explained: Explained) -> StepResult:
    """The rows there are tokens for."""
    told = {name: np.asarray(getattr(explained, name))[: len(tokens)] for name in Explained.__slots__}
    return StepResult(tokens=tokens, **told)
