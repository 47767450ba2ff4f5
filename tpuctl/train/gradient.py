"""Loss and gradients of one global batch, with every collective written out.

Runs inside ``jax.shard_map`` with all mesh axes manual. On the way in, weights are cast to the compute dtype and
made whole over ``data`` once per step; the decoder makes them whole over ``fsdp`` layer by layer. On the way out,
each layer's gradients leave by reduce-scatter over ``fsdp`` in the backward scan, then once per step over ``data``;
what is left to sum (over slices, and the norm scales) is only ever a device's own shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Float, Int, Int32, Key

from tpuctl.mesh import AXES, RULES, Axis, MeshError, mesh_axis, named_sharding
from tpuctl.nn.attention import kernel_for
from tpuctl.nn.collectives import gather, scatter
from tpuctl.nn.decoder import ForwardOptions, TokenRows
from tpuctl.nn.loss import LossOptions, Targets, cross_entropy
from tpuctl.nn.params import ParamTree, bind
from tpuctl.nn.partition import Partition, batch_shard_index
from tpuctl.plan.schema import TrainingPlan
from tpuctl.train.trainable import Trainable


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalBatch:
    """A ``HostBatch`` of all hosts as global arrays, rows split over the batch axes.

    ``stop_vote`` is not 0 on the rows of a host that wants every host to stop after this step.
    """

    tokens: Int32[Array, "b s"]
    targets: Int32[Array, "b s"]
    segment_ids: Int32[Array, "b s"]
    positions: Int32[Array, "b s"]
    loss_mask: Int32[Array, "b s"]
    num_bytes: Int32[Array, " b"]
    cursor: Int32[Array, "b 4"]
    stop_vote: Int32[Array, " b"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSums:
    """Sums over the counted tokens of a batch; ``num_bytes`` is the text they stand for."""

    nats: Float[Array, ""]
    tokens: Int[Array, ""]
    num_bytes: Int[Array, ""]


for _node in (GlobalBatch, LossSums):
    jax.tree_util.register_dataclass(_node)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossProgram:
    """What the loss of a plan needs, decided once. ``axes``: the logical axes of all parameters."""

    plan: TrainingPlan
    mesh: Mesh
    trainable: Trainable
    axes: ParamTree
    forward: ForwardOptions
    loss: LossOptions

    @property
    def data(self) -> Axis:
        """The ``data`` axis, over which the weights are made whole once per step."""
        return mesh_axis(self.mesh, "data")

    @property
    def param_specs(self) -> ParamTree:
        """PartitionSpecs of the parameters."""
        return map_axes(lambda axes: RULES.spec(axes), self.axes)

    def size(self, axis: str) -> int:
        """Length of a mesh axis."""
        return int(self.mesh.shape[axis])


def map_axes(function: Callable[..., Any], axes: ParamTree, *trees: ParamTree) -> ParamTree:
    """``function(axes, *leaves)`` for each parameter in a tree of logical axes."""
    tree: ParamTree = jax.tree.map(function, axes, *trees, is_leaf=lambda node: isinstance(node, tuple))
    return tree


def loss_program(plan: TrainingPlan, mesh: Mesh, *, real_vocab: int | None = None) -> LossProgram:
    """The program of ``plan`` on ``mesh``. ``real_vocab``: token ids that exist, if fewer than the model's rows.

    Raises:
        MeshError: the batch does not divide into shards and microbatches, or the sequence over ``tensor``.
    """
    train, tensor = plan.train, mesh.shape["tensor"]
    if train.global_batch % train.microbatches:
        raise MeshError(f"global batch {train.global_batch} does not divide into {train.microbatches} microbatches")
    named_sharding(mesh, ("batch",), shape=(train.global_batch // train.microbatches,))
    if train.sequence_length % tensor:
        raise MeshError(f"sequence length {train.sequence_length} does not divide over tensor {tensor}")
    forward = ForwardOptions(
        kernel=kernel_for(mesh.devices.flat[0].platform),
        remat=train.remat,
        dropout=train.dropout,
        adapter_dropout=plan.lora.dropout if plan.lora else 0.0,
        partition=Partition.of(mesh),
    )
    model = plan.model
    loss = LossOptions(
        real_vocab=real_vocab or model.vocab_size, softcap=model.logits_softcap, z_loss=train.z_loss, tensor=tensor
    )
    trainable = Trainable.of(plan)
    axes = trainable.axes(tensor=tensor)
    return LossProgram(plan=plan, mesh=mesh, trainable=trainable, axes=axes, forward=forward, loss=loss)


def gradients(
    program: LossProgram, params: ParamTree, batch: GlobalBatch, *, key: Key[Array, ""]
) -> tuple[ParamTree, LossSums]:
    """Gradients of the *summed* objective by what is trained, f32 and sharded as it, and the sums to divide them by.

    Sums, not means: microbatches and devices with different token counts then weigh by tokens of themselves.
    """

    def local(params: ParamTree, batch: GlobalBatch, key: Key[Array, ""]) -> tuple[ParamTree, LossSums]:
        working = _working_copy(program, params)
        grads, sums = _accumulated(program, working, batch, key=key)
        return _reduced(program, grads), _total(program, sums)

    rows = PartitionSpec(RULES.batch)
    specs = program.param_specs
    mapped = jax.shard_map(
        local,
        mesh=program.mesh,
        in_specs=(specs, rows, PartitionSpec()),
        out_specs=(program.trainable.trained(specs), PartitionSpec()),
        check_vma=False,
    )
    result: tuple[ParamTree, LossSums] = mapped(params, batch, key)
    return result


def losses(program: LossProgram, params: ParamTree, batch: GlobalBatch) -> LossSums:
    """The sums alone, without dropout or gradient."""

    def local(params: ParamTree, batch: GlobalBatch) -> LossSums:
        return _total(program, _objective(program, _working_copy(program, params), batch, row_keys=None)[1])

    specs = (program.param_specs, PartitionSpec(RULES.batch))
    mapped = jax.shard_map(local, mesh=program.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    sums: LossSums = mapped(params, batch)
    return sums


def _working_copy(program: LossProgram, params: ParamTree) -> ParamTree:
    def prepare(axes: tuple[str, ...], weight: Array) -> Array:
        weight = weight.astype(program.trainable.working_dtype(axes))  # before the gathers: half the bytes on the wire
        dimension = _data_dimension(program, axes)
        return weight if dimension is None else gather(weight, program.data, dimension)

    return map_axes(prepare, program.axes, params)


def _data_dimension(program: LossProgram, axes: tuple[str, ...]) -> int | None:
    split = [i for i, logical in enumerate(axes) if "data" in RULES.mesh_axes(logical)]
    return split[0] if split and program.size("data") > 1 else None


def _accumulated(
    program: LossProgram, working: ParamTree, batch: GlobalBatch, *, key: Key[Array, ""]
) -> tuple[ParamTree, LossSums]:
    """Over microbatches. Each reduce-scatters its own gradients, so what is kept between them is a shard in f32
    and not the whole model's gradient; the price is that the reduce-scatter is paid once per microbatch."""
    trained, frozen = program.trainable.split(working)

    def objective(trained: ParamTree, part: GlobalBatch, keys: Any) -> tuple[Array, LossSums]:
        return _objective(program, program.trainable.join(trained, frozen), part, row_keys=keys)

    differentiate = jax.value_and_grad(objective, has_aux=True)
    row_keys = _row_keys(program, batch, key)
    count = program.plan.train.microbatches
    if count == 1:
        (_, sums), grads = differentiate(trained, batch, row_keys)
        return grads, sums

    def add(total: Any, part: tuple[GlobalBatch, Any]) -> tuple[Any, None]:
        (_, sums), grads = differentiate(trained, *part)
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, (grads, sums)), None

    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), (batch, row_keys))
    zero_grads = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), trained)
    zero_sums = LossSums(nats=jnp.float32(0), tokens=jnp.int32(0), num_bytes=jnp.int32(0))
    result: tuple[ParamTree, LossSums] = lax.scan(add, (zero_grads, zero_sums), parts)[0]
    return result


def _row_keys(program: LossProgram, batch: GlobalBatch, key: Key[Array, ""]) -> Key[Array, " rows"] | None:
    if not (program.forward.dropout or program.forward.adapter_dropout):
        return None
    rows = batch.tokens.shape[0]
    first = batch_shard_index({axis: program.size(axis) for axis in AXES}) * rows
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, first + jnp.arange(rows))


def _objective(
    program: LossProgram, working: ParamTree, batch: GlobalBatch, *, row_keys: Key[Array, " rows"] | None
) -> tuple[Float[Array, ""], LossSums]:
    decoder = bind(program.plan.model, working, lora=program.plan.lora)
    rows = TokenRows(tokens=batch.tokens, positions=batch.positions, segment_ids=batch.segment_ids)
    hidden = decoder.hidden(rows, options=replace(program.forward, dropout_keys=row_keys))
    head = decoder.head_matrix(partition=program.forward.partition)
    targets = Targets(tokens=batch.targets, mask=batch.loss_mask)
    objective, nats = cross_entropy(hidden, head, targets, options=program.loss)
    return objective, LossSums(nats=nats, tokens=batch.loss_mask.sum(), num_bytes=batch.num_bytes.sum())


def _reduced(program: LossProgram, grads: ParamTree) -> ParamTree:
    def reduce(axes: tuple[str, ...], grad: Array) -> Array:
        dimension = _data_dimension(program, axes)
        if dimension is not None:
            grad = scatter(grad, program.data, dimension)
        split_on = {mesh_axis for logical in axes for mesh_axis in RULES.mesh_axes(logical)}
        rest = tuple(axis for axis in AXES if axis not in split_on and program.size(axis) > 1)
        grad = grad.astype(jnp.float32)
        return lax.psum(grad, rest) if rest else grad

    return map_axes(reduce, program.trainable.trained(program.axes), grads)


def _total(program: LossProgram, sums: LossSums) -> LossSums:
    axes = tuple(axis for axis in RULES.batch if program.size(axis) > 1)
    return lax.psum(sums, axes) if axes else sums
