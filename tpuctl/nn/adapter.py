"""Low-rank adapters beside projections (LoRA, Hu et al. 2021): ``W x + scale · B A x`` with W frozen.

Computed beside the projection and never as a changed weight, which would cost a matrix of W's size per layer. The
factors lie over ``tensor`` as the projection does and whole everywhere else: they are small, so no layer gathers
them, and their gradients are summed once per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Bool, Float, Key

from tpuctl.modelspec.adapters import BACK, TARGETS
from tpuctl.nn.layers import ParamMaker, folded, project, project_back
from tpuctl.nn.partition import Partition
from tpuctl.plan.weights_schema import LoraPlan

# Beyond the sites of dropout on the residual stream.
_FIRST_SITE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapting:
    """How adapters run.

    ``keys``: one per row, of this layer, or None for no dropout. ``ranks``: which of an adapter's ranks each token
    has, or None for all: so that several adapters may stand beside a projection as one.
    """

    partition: Partition
    dropout: float = 0.0
    keys: Key[Array, " b"] | None = None
    ranks: Bool[Array, "b s rank"] | None = None


class Adapter(nnx.Module):
    """The two factors beside one projection, the rank first in both."""

    def __init__(self, target: str, weight: nnx.Param[Any], lora: LoraPlan, *, make: ParamMaker) -> None:
        stacked = int(make.layers is not None)
        shape, axes = weight[...].shape[stacked:], weight.get_metadata("axes")[stacked:]
        residual, other = (shape[:1], ("residual",)), (shape[1:], axes[1:])
        self.back = target in BACK
        inside, outside = (other, residual) if self.back else (residual, other)
        self.scale = lora.scale
        self.site = _FIRST_SITE + list(TARGETS).index(target)
        # PEFT's: Kaiming's uniform with a = √5, which comes to 1/√inputs, and nothing.
        bound = math.prod(inside[0]) ** -0.5
        self.a = make.uniform((lora.rank, *inside[0]), ("rank", *inside[1]), bound=bound)
        self.b = make.zeros((lora.rank, *outside[0]), ("rank", *outside[1]))

    def __call__(self, x: Array, adapting: Adapting, *, kv_heads: int | None = None) -> Array:
        """What to add to the projection of ``x``; like it, a partial sum over ``tensor`` on the way back."""
        part = adapting.partition
        low = project_back(self._dropped(x, adapting), part.weight(self.a))
        if adapting.ranks is not None:
            low = jnp.where(adapting.ranks, low, 0)
        return project(low * jnp.asarray(self.scale, low.dtype), part.weight(self.b, kv_heads=kv_heads))

    def _dropped(self, x: Float[Array, "b s *inside"], adapting: Adapting) -> Array:
        """With dropout, whose mask is the same however the projection's inputs are split."""
        if adapting.keys is None or not adapting.dropout:
            return x
        shards = adapting.partition.tensor.size if self.back else 1
        shape = (x.shape[1], x.shape[2] * shards, *x.shape[3:])
        keys = folded(adapting.keys, self.site)
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - adapting.dropout, shape))(keys)
        if shards > 1:
            keep = lax.dynamic_slice_in_dim(keep, lax.axis_index("tensor") * x.shape[2], x.shape[2], axis=2)
        return jnp.where(keep, x / jnp.asarray(1.0 - adapting.dropout, x.dtype), 0)


class Adapters(nnx.Module):
    """The adapters of a block of a layer, under the names of the weights they stand beside."""

    def __init__(self, block: nnx.Module, targets: dict[str, str], lora: LoraPlan, *, make: ParamMaker) -> None:
        for target, name in targets.items():
            setattr(self, name, Adapter(target, getattr(block, name), lora, make=make))


def adapters_of(block: nnx.Module, group: str, lora: LoraPlan | None, *, make: ParamMaker) -> Adapters | None:
    """New adapters for those weights of a block that have some; ``group`` is the block's name within a layer."""
    paths = {target: TARGETS[target].split("/") for target in (lora.targets if lora else ())}
    targets = {target: name for target, (place, name) in paths.items() if place == group}
    return Adapters(block, targets, lora, make=make) if lora and targets else None


def adapted(out: Array, x: Array, adapter: Adapter | None, adapting: Adapting, *, kv_heads: int | None = None) -> Array:
    """A projection's result with its adapter's, where it has one."""
    return out if adapter is None else out + adapter(x, adapting, kv_heads=kv_heads)
