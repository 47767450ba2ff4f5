"""Experts dealt out over devices: results and gradients are those of one, however lopsided the routes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from tpuctl.mesh import Axis
from tpuctl.nn.dealt import ExpertWeights, Routes, dealt

DEVICES, EXPERTS, PER_TOKEN = 4, 8, 2
TOKENS, HIDDEN, INNER = 24, 8, 12
AXIS = Axis(name="expert", rings=(DEVICES,))


def routes(kind: str) -> np.ndarray:
    """Numbers of the experts of each token."""
    random = np.random.default_rng(1)
    among = {"even": EXPERTS, "all to the first device": 2, "none to the last": 6}[kind]
    return np.stack([random.permutation(among)[:PER_TOKEN] for _ in range(TOKENS)]).astype(np.int32)


def inputs() -> tuple[np.ndarray, np.ndarray, ExpertWeights]:
    random = np.random.default_rng(0)
    weights = ExpertWeights(*(random.standard_normal((EXPERTS, HIDDEN, INNER), np.float32) for _ in range(3)))
    shares = random.uniform(size=(TOKENS, PER_TOKEN)).astype(np.float32)
    return random.standard_normal((TOKENS, HIDDEN), np.float32), shares, weights


def by_definition(rows: Any, shares: Any, weights: ExpertWeights, chosen: np.ndarray) -> jax.Array:
    gate, up, down = (each[chosen] for each in weights)
    inner = jax.nn.silu(jnp.einsum("nd,nkdf->nkf", rows, gate)) * jnp.einsum("nd,nkdf->nkf", rows, up)
    return jnp.einsum("nkf,nkdf,nk->nd", inner, down, shares)


def on_devices(rows: Any, shares: Any, weights: ExpertWeights, chosen: np.ndarray) -> jax.Array:
    split = PartitionSpec("expert")
    mapped = jax.shard_map(
        lambda rows, shares, chosen, weights: dealt(
            rows, Routes(shares, chosen), weights, activation="silu", axis=AXIS
        ),
        mesh=Mesh(np.array(jax.devices()[:DEVICES]), ("expert",)),
        in_specs=(split, split, split, split),
        out_specs=split,
        check_vma=False,
    )
    result: jax.Array = mapped(rows, shares, chosen, weights)
    return result


@functools.cache
def compiled(compute: Any) -> Any:
    """Result and the gradients of its weighted sum, compiled once for all routes."""
    weighting = np.random.default_rng(2).standard_normal((TOKENS, HIDDEN), np.float32)

    def value(rows: Any, shares: Any, weights: ExpertWeights, chosen: Any) -> tuple[Any, Any]:
        out = compute(rows, shares, weights, chosen)
        return (out * weighting).sum(), out

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.parametrize("kind", ["even", "all to the first device", "none to the last"])
def test_dealt_experts_and_their_gradients_are_those_of_the_definition(kind: str) -> None:
    (_, want), want_grads = compiled(by_definition)(*inputs(), routes(kind))
    (_, got), grads = compiled(on_devices)(*inputs(), routes(kind))
    np.testing.assert_allclose(got, want, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), grads, want_grads)
