"""Keys and values as pages keep them: in the engine's dtype, or in eight bits with no scale.

``fp8`` is float8_e4m3fn. Its three bits of mantissa put a number off by 1/16 of itself at most, large or small, so that
nothing has to be calibrated. What is read is converted before any product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpuctl.nn.attention import Attend, LayerView
from tpuctl.plan.weights_schema import KvDtype

_DTYPES = {"fp8": jnp.float8_e4m3fn}


def page_dtype(kv_dtype: KvDtype | None, *, dtype: Any) -> Any:
    """What pages are arrays of, in an engine of ``dtype``."""
    return jnp.dtype(dtype if kv_dtype is None else _DTYPES[kv_dtype])


def kept(x: Float[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """``x`` in the dtype of pages. In eight bits the largest number, 448, stands for all beyond it."""
    if jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    largest = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return jnp.clip(x, -largest, largest).astype(dtype)  # beyond it the conversion alone would make a NaN


def as_kept(attend: Attend, kv_dtype: KvDtype | None) -> Attend:
    """An ``Attend`` without pages that sees keys and values as pages would keep them."""
    return attend if kv_dtype is None else _AsKept(attend=attend, dtype=_DTYPES[kv_dtype])


@dataclass(frozen=True, kw_only=True, slots=True)
class _AsKept:
    attend: Attend
    dtype: Any

    def __call__(
        self,
        q: Float[Array, "b s h d"],
        k: Float[Array, "b s kv d"],
        v: Float[Array, "b s kv d"],
        *,
        layer: LayerView,
        state: Any,
    ) -> tuple[Float[Array, "b s h d"], Any]:
        """See ``Attend``."""
        keys, values = (kept(x, self.dtype).astype(x.dtype) for x in (k, v))
        return self.attend(q, keys, values, layer=layer, state=state)
