"""Token ids through an encoder, pooled to one vector a text, on all devices of this host.

Texts are sorted by length into a few lengths that are compiled; a text's length alone decides which, so its vector does
not depend on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Float32, Int

from tpuctl.modelspec.encoder import EncoderSpec
from tpuctl.nn.encoder import Weights, encode, load_encoder
from tpuctl.plan.infer_schema import PoolingKind

_SHORTEST = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedderOptions:
    """``max_length`` is in tokens, those that begin and end a text counted in; ``batch_rows`` are computed at once."""

    pooling: PoolingKind
    normalise: bool
    max_length: int
    batch_rows: int


class Embedder:
    """The encoder of a model folder, each device with a share of a batch's rows."""

    def __init__(self, uri: str, options: EmbedderOptions) -> None:
        """Raises as ``load_encoder`` does."""
        self._options = options
        devices = jax.local_devices()
        mesh = Mesh(np.array(devices), ("rows",))
        self._rows = NamedSharding(mesh, PartitionSpec("rows"))
        encoder = load_encoder(uri)
        self._spec = encoder.spec
        self._weights = jax.device_put(encoder.weights, NamedSharding(mesh, PartitionSpec()))
        self.batch_rows = -(-options.batch_rows // len(devices)) * len(devices)

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return self._spec.hidden_size

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that are compiled."""
        longest = self._options.max_length
        return tuple(
            sorted({self._compiled_length(min(1 << power, longest)) for power in range(longest.bit_length() + 1)})
        )

    def vectors(self, texts: Sequence[Sequence[int]]) -> Float32[np.ndarray, "texts size"]:
        """The vector of each text, none of them longer than ``max_length``."""
        found = self.numbered(dict(enumerate(texts)))
        return np.array([found[number] for number in range(len(texts))], np.float32).reshape(-1, self.size)

    def numbered(self, texts: Mapping[int, Sequence[int]]) -> dict[int, np.ndarray]:
        """The vector of each text by its number."""
        by_length: dict[int, list[int]] = {}
        for row, ids in texts.items():
            by_length.setdefault(self._compiled_length(len(ids)), []).append(row)
        batches = [
            (rows[at : at + self.batch_rows], length)
            for length, rows in sorted(by_length.items())
            for at in range(0, len(rows), self.batch_rows)
        ]
        # All are on their way before the first is waited for.
        launched = [(rows, self._launch([texts[row] for row in rows], length)) for rows, length in batches]
        return {row: vector for rows, batch in launched for row, vector in zip(rows, np.asarray(batch), strict=False)}

    def _compiled_length(self, length: int) -> int:
        return min(max(_SHORTEST, 1 << (length - 1).bit_length()), self._options.max_length)

    def _launch(self, batch: Sequence[Sequence[int]], length: int) -> Array:
        tokens = np.zeros((self.batch_rows, length), np.int32)
        mask = np.zeros((self.batch_rows, length), bool)
        for row, ids in enumerate(batch):
            tokens[row, : len(ids)] = ids
            mask[row, : len(ids)] = True
        placed = jax.device_put((tokens, mask), self._rows)
        options = self._options
        vectors: Array = _embed(
            self._weights, *placed, spec=self._spec, pooling=options.pooling, normalise=options.normalise
        )
        return vectors


@partial(jax.jit, static_argnames=("spec", "pooling", "normalise"))
def _embed(
    weights: Weights,
    tokens: Int[Array, "rows length"],
    mask: Bool[Array, "rows length"],
    *,
    spec: EncoderSpec,
    pooling: PoolingKind,
    normalise: bool,
) -> Float[Array, "rows hidden"]:
    hidden = encode(weights, tokens, mask, spec=spec)
    pooled: Array = hidden[:, 0]
    if pooling == "mean":
        pooled = jnp.where(mask[..., None], hidden, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12) if normalise else pooled
