"""The LoRA adapters an engine holds, for requests to name. No jax.

All of them are held as one adapter that has the ranks of each, one adapter's after the other's: so a step with
requests of several is one product with all, of which each token keeps the ranks of its own. Nothing is padded, and a
request of the model itself keeps none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.adapters import adapter_parameters
from tpuctl.plan.weights_schema import LoraPlan

NONE = 0
"""The index of the model itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """Adapters by name; the first has index 1.

    Attributes:
        names: Unique.
        ranks: Of each.
        targets: PEFT's names of the projections that any of them stands beside.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    targets: tuple[str, ...]

    @property
    def lora(self) -> LoraPlan:
        """The one adapter that all are held as. Its scale is 1: each one's own is in its factors."""
        rank = sum(self.ranks)
        return LoraPlan(rank=rank, alpha=float(rank), targets=self.targets, dropout=0.0, adapter=None)

    @property
    def owners(self) -> Int32[np.ndarray, " ranks"]:
        """The index of the adapter that each rank belongs to."""
        return np.repeat(np.arange(1, len(self.ranks) + 1, dtype=np.int32), self.ranks)

    def index(self, name: str | None) -> int:
        """What stands for an adapter in a step; ``None`` is the model itself."""
        return NONE if name is None else 1 + self.names.index(name)


def side_by_side(
    spec: ModelSpec, adapters: Adapters, each: Sequence[tuple[LoraPlan, Mapping[str, np.ndarray]]]
) -> dict[str, np.ndarray]:
    """The factors of the one adapter that ``adapters`` are held as, f32, by path.

    Args:
        spec: The model.
        adapters: What they are.
        each: In the same order the shape and the factors of each, by path and stacked by layer, f32. A projection
            that an adapter does not stand beside it leaves as it is.
    """
    whole = adapter_parameters(spec, rank=adapters.lora.rank, targets=adapters.targets)
    arrays = {path: np.zeros(parameter.stacked_shape, np.float32) for path, parameter in whole.items()}
    first = 0
    for lora, factors in each:
        for path, factor in factors.items():
            scale = np.float32(lora.scale if path.endswith("/b") else 1.0)
            np.multiply(factor, scale, out=arrays[path][:, first : first + lora.rank])
        first += lora.rank
    return arrays
