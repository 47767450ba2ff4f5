"""A weight laid out for the products of XLA on CPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
from jax import Array
from jaxtyping import Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class Transposed:
    """A weight ``[d, *outside]`` of ``layers.project`` or the head, kept as ``[columns, d]``; not to be trained.

    Products on CPU are fastest when both sides are contracted along their last dimension. That has to be said in the
    product itself: a transposition beside it is taken into it for f32 only, and in bf16 is eight times as slow.
    """

    matrix: Float[Array, "*layer columns d"]
    outside: tuple[int, ...] = field(metadata={"static": True})
