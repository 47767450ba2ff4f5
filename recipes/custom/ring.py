"""A job of one's own, in one file: every device of the slice adds its number to a sum that all of them see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

if TYPE_CHECKING:
    from tpuctl.plan.schema import CustomPlan


def main(plan: CustomPlan) -> None:
    """Called on every host, after all have joined one JAX cluster; ``plan`` says which slice this is."""
    local = jnp.arange(jax.local_device_count()) + jax.process_index() * jax.local_device_count()
    total = int(multihost_utils.process_allgather(local).sum())
    expected = sum(range(plan.slice.total_devices))
    print(f"host {jax.process_index()} of {jax.process_count()}: the devices add up to {total}, expected {expected}")
    if total != expected:
        raise ValueError("a host is missing from the sum")
