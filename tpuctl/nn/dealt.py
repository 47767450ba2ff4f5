"""Experts dealt out over the devices of the ``expert`` axis: each does for all their tokens what its experts can.

The devices of the axis gather each other's tokens, and their results are added up by reduce-scatter. No token is ever
dropped, so a device may get all of them or none, and shapes are static: the rows of its experts, sorted, are worked
off in chunks, as many as there turn out to be. Memory is that of a chunk, and time that of the rows there are. The
gradient is written out for that reason: a loop whose length is data has none of its own.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from tpuctl.mesh import Axis
from tpuctl.modelspec.spec import Activation
from tpuctl.nn.collectives import gather, scatter
from tpuctl.nn.grouped import grouped, grouped_back
from tpuctl.nn.layers import ACTIVATIONS

# Of the rows that a device brings itself. With more chunks less of the last one is empty, and weights are read oftener.
_CHUNKS = 2


class ExpertWeights(NamedTuple):
    """Of the experts at hand."""

    gate: Float[Array, "e d f"]
    up: Float[Array, "e d f"]
    down: Float[Array, "e d f"]


class Routes(NamedTuple):
    """Where tokens go: the numbers of their experts, and the share each has in the result."""

    shares: Float[Array, "n k"]
    chosen: Int[Array, "n k"]


class Assigned(NamedTuple):
    """Which rows go to this device's experts.

    ``order`` has the places (token · experts per token + choice) sorted by expert, those of others' experts last;
    ``ends[i]`` is where the rows of expert ``i`` end in it.
    """

    order: Int[Array, " places"]
    ends: Int[Array, " e"]


def sorted_outputs(
    rows: Float[Array, "n d"], weights: ExpertWeights, sizes: Int[Array, " e"], *, activation: Activation
) -> Float[Array, "n d"]:
    """Each group of rows through the MLP of its expert. Rows of no group, at the end, come out as anything."""
    gate = grouped(rows, weights.gate, sizes)
    up = grouped(rows, weights.up, sizes)
    return grouped_back(ACTIVATIONS[activation](gate) * up, weights.down, sizes)


def dealt(
    rows: Float[Array, "n d"], routes: Routes, weights: ExpertWeights, *, activation: Activation, axis: Axis
) -> Float[Array, "n d"]:
    """The mixtures of this device's tokens, from the experts on all devices of ``axis``."""
    everyone, shares = gather(rows, axis, 0), gather(routes.shares, axis, 0)
    chosen = gather(lax.stop_gradient(routes.chosen), axis, 0)
    count = weights.gate.shape[0]
    assigned = _assigned(chosen.reshape(-1) - lax.axis_index(axis.name) * count, count)
    mixed = _mixed((activation, -(-routes.chosen.size // _CHUNKS)), everyone, shares, weights, assigned)
    return scatter(mixed.astype(rows.dtype), axis, 0)


def _assigned(expert: Int[Array, " places"], count: int) -> Assigned:
    mine = jnp.where((expert >= 0) & (expert < count), expert, count)
    sizes = jnp.bincount(mine, length=count + 1)[:count]
    return Assigned(jnp.argsort(mine, stable=True), jnp.cumsum(sizes).astype(jnp.int32))


class _Chunk(NamedTuple):
    """Some rows in turn: their places, the tokens these are of, rows for each expert, and which are rows at all."""

    places: Int[Array, " c"]
    tokens: Int[Array, " c"]
    sizes: Int[Array, " e"]
    real: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mixed(
    static: tuple[Activation, int],
    rows: Float[Array, "n d"],
    shares: Float[Array, "n k"],
    weights: ExpertWeights,
    assigned: Assigned,
) -> Float[Array, "n d"]:
    """For each token the sum of what this device's experts give it, f32. ``static``: activation, rows in a chunk."""

    def add(i: Array, total: Array) -> Array:
        chunk = _chunk(assigned, i, static[1], shares.shape[1])
        out = _weighted(rows[chunk.tokens], shares.reshape(-1)[chunk.places], weights, chunk, static[0])
        return total.at[chunk.tokens].add(out)

    total: Array = lax.fori_loop(0, _count(assigned, static[1]), add, jnp.zeros(rows.shape, jnp.float32))
    return total


def _forward(static: Any, *arguments: Any) -> tuple[Array, Any]:
    return _mixed(static, *arguments), arguments


def _backward(static: tuple[Activation, int], saved: Any, d_total: Float[Array, "n d"]) -> tuple[Any, ...]:
    rows, shares, weights, assigned = saved

    def add(i: Array, grads: Any) -> Any:
        chunk = _chunk(assigned, i, static[1], shares.shape[1])
        _, pull = jax.vjp(
            lambda rows, shares, weights: _weighted(rows, shares, weights, chunk, static[0]),
            rows[chunk.tokens],
            shares.reshape(-1)[chunk.places],
            weights,
        )
        d_rows, d_shares, d_weights = pull(d_total[chunk.tokens])
        return (
            grads[0].at[chunk.tokens].add(d_rows.astype(jnp.float32)),
            grads[1].at[chunk.places].add(d_shares),
            jax.tree.map(jnp.add, grads[2], d_weights),
        )

    nothing = (
        jnp.zeros(rows.shape, jnp.float32),
        jnp.zeros(shares.size, shares.dtype),
        jax.tree.map(lambda weight: jnp.zeros(weight.shape, jnp.float32), weights),
    )
    grads = lax.fori_loop(0, _count(assigned, static[1]), add, nothing)
    d_rows, d_shares, d_weights = grads
    unfeeling = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), assigned)
    as_given = jax.tree.map(lambda grad, weight: grad.astype(weight.dtype), d_weights, weights)
    return d_rows.astype(rows.dtype), d_shares.reshape(shares.shape), as_given, unfeeling


_mixed.defvjp(_forward, _backward)


def _count(assigned: Assigned, size: int) -> Array:
    return -(-assigned.ends[-1] // size)


def _chunk(assigned: Assigned, i: Array, size: int, per_token: int) -> _Chunk:
    start = i * size
    at = start + jnp.arange(size)
    real = at < assigned.ends[-1]
    places = assigned.order[jnp.where(real, at, 0)]
    ends = jnp.clip(assigned.ends - start, 0, size)
    return _Chunk(places, places // per_token, jnp.diff(ends, prepend=0), real)


def _weighted(rows: Array, shares: Array, weights: ExpertWeights, chunk: _Chunk, activation: Activation) -> Array:
    """What a chunk's rows add to their tokens, f32. What is no row is kept out both ways: it may hold anything."""
    real = chunk.real[:, None]
    out = sorted_outputs(jnp.where(real, rows, 0), weights, chunk.sizes, activation=activation)
    return jnp.where(real, out, 0).astype(jnp.float32) * shares[:, None]
