"""The parts of a plan that say which weights a run starts from, and which of them it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QuantisedDtype = Literal["int8"]
"""What matrices of attention and MLP may be kept as, each output channel with a scale of its own."""

KvDtype = Literal["fp8"]
"""What keys and values may be kept as in an engine's pages, in place of its dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsPlan:
    """Weights to start from: a model folder, and the family (``model_type``) that names its tensors."""

    uri: str
    family: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraPlan:
    """Adapters to train beside frozen weights. ``targets`` are PEFT's names of projections.

    ``adapter`` is a folder of PEFT's to start from; None draws new ones.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float
    adapter: str | None

    @property
    def scale(self) -> float:
        """What an adapter's result is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedAdapterPlan:
    """Adapters served beside a model, under a name of their own: a folder of PEFT's, or with ``is_run`` a training run.

    ``step`` is that of the run's checkpoint; None is the newest that is complete when the endpoint starts.
    """

    name: str
    uri: str
    is_run: bool
    step: int | None
    lora: LoraPlan
