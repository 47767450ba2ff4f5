"""What a model's weights and KV pages take on the devices that serve it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.pages import page_bytes
from tpuctl.modelspec.quantised import largest_quantised, weight_bytes
from tpuctl.plan.budget import gib
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype
from tpuctl.recipe.origin import Findings

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
_KV_BYTES = {"fp8": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldWeights:
    """All weights, over all devices: in ``dtype``, but for those that are quantised where that is asked for."""

    model: ModelSpec
    dtype: str
    quantised: QuantisedDtype | None

    @property
    def num_bytes(self) -> int:
        """Of the weights once they are loaded."""
        item_bytes = DTYPE_BYTES[self.dtype]
        return weight_bytes(self.model, item_bytes=item_bytes, quantised=self.quantised is not None)

    def check(self, key: str, *, hbm_bytes: int, findings: Findings) -> None:
        """Refuse to quantise what can't be, or what would not fit while it is."""
        if self.quantised is None:
            return
        if self.model.experts is not None:
            message = f"{self.model.name} has experts, and the kernel that multiplies by them takes no {self.quantised}"
            findings.refuse(key, message, "leave it out")
        # One matrix of all layers is there as it was read when the last of them is made.
        passing = largest_quantised(self.model) * DTYPE_BYTES[self.dtype]
        if self.num_bytes + passing > hbm_bytes:
            message = f"{gib(self.num_bytes)} of weights and {gib(passing)} of one as it is read do not fit the devices"
            findings.refuse(key, message, "take a larger slice")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPages:
    """KV pages over all devices that share a model's heads: in ``dtype``, but for another that is asked for."""

    model: ModelSpec
    dtype: str
    kv_dtype: KvDtype | None
    devices: int
    page_size: int

    @property
    def num_bytes(self) -> int:
        """Of one page of all layers."""
        return self._bytes(DTYPE_BYTES[self.dtype] if self.kv_dtype is None else _KV_BYTES[self.kv_dtype])

    def check(self, key: str, *, findings: Findings) -> None:
        """Refuse smaller numbers where pages would be no smaller."""
        if self.kv_dtype is None or self.num_bytes < self._bytes(DTYPE_BYTES[self.dtype]):
            return
        heads = self.model.num_kv_heads
        message = (
            f"pages would be no smaller: a TPU reads two key heads of {self.kv_dtype} at a time, and each of "
            f"{self.devices} devices has one of the {heads} that {self.model.name} has"
        )
        fewer = f", or let at most {heads // 2} devices share the heads" if heads > 1 else ""
        findings.refuse(key, message, f"leave it out{fewer}")

    def _bytes(self, item_bytes: int) -> int:
        return page_bytes(self.model, devices=self.devices, item_bytes=item_bytes, page_size=self.page_size)
