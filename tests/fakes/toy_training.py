"""A bigram model small enough to train in milliseconds, behind the same shapes as the real one.

It has what a checkpoint must carry: sharded float32 masters, Optax named tuples, an int32 beyond float32's
precision, a typed PRNG key that decides dropout, and a data cursor sharded over the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from tpuctl.train.batch import HostBatch
from tpuctl.train.program import Program

VOCAB = 32
WIDTH = 8
SEQUENCE = 16
BIG_INTEGER = 16_777_217


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, slots=True)
class ToyState:
    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array
    cursor: jax.Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Toy:
    """How a toy program differs from the plain one."""

    rows: int = 8
    seed: int = 0
    dropout: float = 0.1
    key_impl: str = "threefry2x32"
    param_dtype: Any = jnp.float32
    extra_params: tuple[str, ...] = ()
    rename_embedding: str = "embedding"
    # Multiplies the loss by infinity at this step, as an exploding run does.
    explode_at: int | None = None


def make_mesh(devices: list[Any] | None = None) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(devices or jax.devices()), ("data",))


@functools.cache
def toy_program(mesh: jax.sharding.Mesh, toy: Toy = Toy()) -> Program:
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.05, 5, 40), weight_decay=0.01)

    def init() -> ToyState:
        return _init(toy, optimizer)

    shapes = jax.eval_shape(init)
    shardings = _shardings(shapes, mesh)
    abstract = jax.tree.map(_abstract, shapes, shardings)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return Program(
        mesh=mesh,
        abstract_state=abstract,
        abstract_batch={
            "tokens": jax.ShapeDtypeStruct((toy.rows, SEQUENCE), jnp.int32, sharding=rows),
            "mask": jax.ShapeDtypeStruct((toy.rows, SEQUENCE), jnp.int32, sharding=rows),
            "cursor": jax.ShapeDtypeStruct((toy.rows, 4), jnp.int32, sharding=rows),
            "num_bytes": jax.ShapeDtypeStruct((toy.rows,), jnp.int32, sharding=rows),
            "stop_vote": jax.ShapeDtypeStruct((toy.rows,), jnp.int32, sharding=rows),
        },
        init=jax.jit(init, out_shardings=shardings),
        train_step=_train_step(toy, optimizer, mesh, shardings),
        eval_step=jax.jit(_eval_sums, out_shardings=NamedSharding(mesh, PartitionSpec())),
        assemble=lambda batch, vote: _assemble(batch, vote, rows, toy.rows),
    )


def _init(toy: Toy, optimizer: optax.GradientTransformation) -> ToyState:
    key = jax.random.key(toy.seed, impl=toy.key_impl)
    names = (toy.rename_embedding, "head", *toy.extra_params)
    params = {
        name: 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(7), i), (VOCAB, WIDTH), toy.param_dtype)
        for i, name in enumerate(names)
    }
    params["steps_seen"] = jnp.int32(BIG_INTEGER)
    weights = {name: params[name] for name in names}
    return ToyState(
        params=params,
        opt_state=optimizer.init(weights),
        step=jnp.int32(0),
        key=key,
        cursor=jnp.zeros((toy.rows, 4), jnp.int32),
    )


def _shardings(shapes: ToyState, mesh: jax.sharding.Mesh) -> Any:
    def of(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec("data") if leaf.ndim else PartitionSpec())

    return jax.tree.map(of, shapes)


def _abstract(leaf: Any, sharding: NamedSharding) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _train_step(toy: Toy, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh, shardings: Any) -> Any:
    def step(state: ToyState, batch: dict[str, jax.Array]) -> tuple[ToyState, dict[str, jax.Array]]:
        weights = {name: value for name, value in state.params.items() if name != "steps_seen"}
        tokens = batch["mask"].sum()

        def loss_of(weights: dict[str, jax.Array]) -> jax.Array:
            keep = jax.random.bernoulli(jax.random.fold_in(state.key, state.step), 1 - toy.dropout, (WIDTH,))
            return _nats({**weights, "keep": keep}, batch) / jnp.maximum(tokens, 1)

        loss, grads = jax.value_and_grad(loss_of)(weights)
        if toy.explode_at is not None:
            loss = jnp.where(state.step == toy.explode_at - 1, jnp.inf, loss)
        updates, opt_state = optimizer.update(grads, state.opt_state, weights)
        norm = optax.tree.norm(grads)
        state = ToyState(
            params={**optax.apply_updates(weights, updates), "steps_seen": state.params["steps_seen"] + 1},
            opt_state=opt_state,
            step=state.step + 1,
            key=state.key,
            cursor=batch["cursor"],
        )
        metrics = {
            "loss": loss,
            "tokens": tokens,
            "grad_norm": norm,
            "learning_rate": jnp.float32(0.05),
            "finite": jnp.isfinite(loss) & jnp.isfinite(norm),
            "stop_votes": batch["stop_vote"].sum(),
        }
        return state, metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())))


def _nats(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    embedding = next(value for name, value in params.items() if name.startswith("embed"))
    hidden = embedding[batch["tokens"][:, :-1]].astype(jnp.float32)
    if "keep" in params:
        hidden = hidden * params["keep"]
    logits = hidden @ params["head"].T.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"][:, 1:])
    return (losses * batch["mask"][:, 1:]).sum()


def _eval_sums(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {"nats": _nats(params, batch), "tokens": batch["mask"].sum(), "bytes": batch["num_bytes"].sum()}


def _assemble(batch: HostBatch, vote: bool, rows: NamedSharding, num_rows: int) -> dict[str, jax.Array]:
    local = {
        "tokens": batch.tokens,
        "mask": batch.loss_mask,
        "cursor": batch.cursor,
        "num_bytes": batch.num_bytes,
        "stop_vote": np.full(len(batch.num_bytes), vote, np.int32),
    }
    return {
        name: jax.make_array_from_process_local_data(rows, value, (num_rows, *value.shape[1:]))
        for name, value in local.items()
    }


class ToyFeed:
    """Lanes of pseudo-random tokens: row r at position p depends on (seed, r, p) alone.

    ``length`` ends lane r after ``length[r]`` rows; without it the lanes have no end.
    """

    def __init__(self, rows: range, *, length: list[int] | None = None, eval_batches: int = 3) -> None:
        self._rows = rows
        self._length = length
        self._eval_batches = eval_batches

    def train(self, cursor: np.ndarray) -> Iterator[HostBatch]:
        positions = [int(value) for value in cursor[:, 0]]
        while True:
            yield self._batch(positions, self._length, seed=1)
            positions = [position + 1 for position in positions]

    def evaluate(self) -> Iterator[HostBatch]:
        position = 0
        while True:
            lengths = [self._eval_batches] * (max(self._rows) + 1)
            yield self._batch([position] * len(self._rows), lengths, seed=2)
            position += 1

    def _batch(self, positions: list[int], length: list[int] | None, seed: int) -> HostBatch:
        tokens = np.zeros((len(self._rows), SEQUENCE), np.int32)
        mask = np.zeros_like(tokens)
        cursor = np.zeros((len(self._rows), 4), np.int32)
        for i, (row, position) in enumerate(zip(self._rows, positions, strict=True)):
            cursor[i, 0] = position + 1
            if length is None or position < length[row]:
                tokens[i] = np.random.default_rng((seed, row, position)).integers(0, VOCAB, SEQUENCE) // 2
                mask[i] = 1
        return HostBatch(
            tokens=tokens,
            targets=tokens,
            segment_ids=mask,
            positions=np.broadcast_to(np.arange(SEQUENCE, dtype=np.int32), tokens.shape),
            loss_mask=mask,
            num_bytes=2 * mask.sum(axis=1, dtype=np.int32),
            cursor=cursor,
        )
