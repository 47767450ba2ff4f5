"""What the decoder must know of the mesh it runs on: how a shard of a weight or of the sequence becomes whole.

The decoder is written for one device's shard and runs inside ``jax.shard_map`` with every mesh axis manual. Each
collective is therefore in the source, and so is its transpose: gathering a weight over ``fsdp`` makes its gradient
leave by reduce-scatter, which automatic partitioning does not do on TPU (it all-reduces the whole gradient).

Between layers activations are split over ``tensor`` along the sequence, so entering a tensor-parallel block is a
gather, leaving it a reduce-scatter, and every gradient is simply summed over the mesh axes its weight is not
split on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh
from jaxtyping import Float, Int

from tpuctl.mesh import BATCH_AXES, RULES, Axis, mesh_axis
from tpuctl.nn.collectives import gather, scatter
from tpuctl.nn.quantised import Quantised
from tpuctl.nn.transposed import Transposed


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """The mesh axes that split weights within the forward pass; of length 1 is no split, and no collective.

    ``fsdp`` is the mesh's together with ``expert``: over both, all weights but the experts' are split alike. These are
    dealt out over ``expert``, and each is split over ``expert_fsdp``, the mesh's own ``fsdp``.
    """

    fsdp: Axis = Axis(name="fsdp")  # noqa: RUF009 (frozen)
    expert: Axis = Axis(name="expert")  # noqa: RUF009
    expert_fsdp: Axis = Axis(name="fsdp")  # noqa: RUF009
    tensor: Axis = Axis(name="tensor")  # noqa: RUF009

    @classmethod
    def of(cls, mesh: Mesh) -> Self:
        """That of a mesh on which a model is trained."""
        return cls(
            fsdp=mesh_axis(mesh, "fsdp", "expert"),
            expert=mesh_axis(mesh, "expert"),
            expert_fsdp=mesh_axis(mesh, "fsdp"),
            tensor=mesh_axis(mesh, "tensor"),
        )

    def weight(self, param: nnx.Param[Any], *, kv_heads: int | None = None) -> Array:
        """The weight of one layer, whole over ``fsdp`` and still a shard over ``tensor``.

        ``kv_heads`` is the model's number of them. Where they are fewer than the ``tensor`` devices, each of these
        holds them all and takes the one its query heads read; their gradients are summed like any other's.
        """
        kept: Any = param.get_value()
        quantised = isinstance(kept, Quantised)
        assert not (quantised and self.fsdp.size > 1), "quantised weights are not trained"
        if isinstance(kept.values if quantised else kept, Transposed):
            return cast("Array", kept)  # one device's own, so it is whole; ``project`` knows what to do with it
        axes = param.get_metadata("axes")
        own: Array = jax.tree.map(lambda value: self._weight(value, axes, kv_heads=kv_heads), kept)
        return own

    def _weight(self, value: Array, axes: tuple[str, ...], *, kv_heads: int | None) -> Array:
        axes = axes[-value.ndim :]  # a scan over layers has taken the leading axis away
        if "kv_heads" in axes and kv_heads is not None and kv_heads < self.tensor.size:
            head = lax.axis_index("tensor") * kv_heads // self.tensor.size
            value = lax.dynamic_slice_in_dim(value, head, 1, axis=axes.index("kv_heads"))
        return self._whole(value, axes)

    def weight_transposed(self, param: nnx.Param[Any]) -> Array:
        """The transpose of a matrix, whole over ``fsdp``. Transposed before the gather: see ``project_back``."""
        return self._whole(param[...].T, param.get_metadata("axes")[::-1])

    def gather_sequence(self, x: Float[Array, "b s_shard d"]) -> Float[Array, "b s d"]:
        """Enter a tensor-parallel block: the whole sequence on every ``tensor`` device."""
        return gather(x, self.tensor, 1)

    def scatter_sequence(self, partial: Float[Array, "b s d"]) -> Float[Array, "b s_shard d"]:
        """Leave a tensor-parallel block: partial sums added up, each device keeping its part of the sequence."""
        return scatter(partial, self.tensor, 1)

    def embed(self, table: nnx.Param[Any], tokens: Int[Array, "b s"]) -> Float[Array, "b s_shard d"]:
        """Embeddings of ``tokens``, without ever making the table whole.

        Each device holds some columns of the table: it looks up those columns for the tokens of all ``fsdp``
        devices and exchanges them for all columns of its own tokens. That moves activations instead of the table,
        and the table's gradient is born in its shard.
        """
        everyone = gather(tokens, self.fsdp, 0)
        columns = self.scatter_sequence(self._look_up(table[...], everyone))
        if self.fsdp.size == 1:
            return columns
        rows: Array = lax.all_to_all(columns, self.fsdp.name, split_axis=0, concat_axis=2, tiled=True)
        return rows

    def sequence_shard(self, x: Array) -> Array:
        """This ``tensor`` device's part of an array ``[b, s, …]`` that all of them hold whole."""
        if self.tensor.size == 1:
            return x
        length = x.shape[1] // self.tensor.size
        return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * length, length, axis=1)

    def vocab_offset(self, local_vocab: int) -> Array | int:
        """First vocabulary row of this ``tensor`` device's shard."""
        return 0 if self.tensor.size == 1 else lax.axis_index("tensor") * local_vocab

    def _whole(self, value: Array, axes: tuple[str, ...]) -> Array:
        for dimension, logical in enumerate(axes):
            if "fsdp" in RULES.mesh_axes(logical):
                axis = self.fsdp if "expert" in RULES.mesh_axes(logical) else self.expert_fsdp
                value = gather(value, axis, dimension)
        return value

    def _look_up(self, table: Float[Array, "v_shard d_shard"], tokens: Int[Array, "b s"]) -> Array:
        if self.tensor.size == 1:
            return table[tokens]
        local = tokens - self.vocab_offset(table.shape[0])
        mine = (local >= 0) & (local < table.shape[0])
        return jnp.where(mine[..., None], table[jnp.where(mine, local, 0)], 0)


WHOLE = Partition()
"""One device: nothing is split."""


def batch_shard_index(sizes: dict[str, int]) -> Array | int:
    """This device's place among the shards of the global batch; for use inside ``shard_map``."""
    index: Array | int = 0
    for axis in BATCH_AXES:
        index = index * sizes[axis] + (lax.axis_index(axis) if sizes[axis] > 1 else 0)
    return index
