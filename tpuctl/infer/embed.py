"""The embed task: a text's tokens through an encoder, pooled to one vector, as a list column of fixed size.

Texts are sorted by length into a few lengths that are compiled; a text's length alone decides which, so its vector does
not depend on the others.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from tpuctl.errors import WeightsError
from tpuctl.infer.arrays import to_arrays
from tpuctl.infer.prompts import read_prompts
from tpuctl.infer.task import Worked
from tpuctl.model_folder import read_json
from tpuctl.modelspec.encoder import EncoderSpec
from tpuctl.nn.encoder import Weights, encode, load_encoder
from tpuctl.plan.infer_schema import PoolingKind, TaskPlan
from tpuctl.text import Tokenizer
from tpuctl.text.place import TokenizerRef

_SHORTEST = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedOptions:
    """``max_length`` is in tokens, those that begin and end a text counted in."""

    column: str
    pooling: PoolingKind
    normalise: bool
    truncate: bool
    max_length: int
    batch_rows: int


class EmbedTask:
    """Texts to vectors on all devices of this host, each with a share of a batch's rows."""

    def __init__(self, uri: str, tokenizer: Tokenizer, options: EmbedOptions) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._turn = threading.Lock()
        devices = jax.local_devices()
        mesh = Mesh(np.array(devices), ("rows",))
        self._rows = NamedSharding(mesh, PartitionSpec("rows"))
        encoder = load_encoder(uri)
        self._spec = encoder.spec
        self._weights = jax.device_put(encoder.weights, NamedSharding(mesh, PartitionSpec()))
        self._batch_rows = -(-options.batch_rows // len(devices)) * len(devices)

    @classmethod
    def of(cls, plan: TaskPlan, uri: str) -> Self:
        """The task of a plan with the model in a folder.

        Raises:
            WeightsError: no encoder there, or none that takes texts that long.
            DataError: no tokenizer there, or one with ids that the model has no row for.
        """
        assert plan.text_column is not None, "plan.infer fills it in"
        length = plan.max_length or _own_length(uri)
        spec = EncoderSpec.of_config(read_json(uri, "config.json") or {})
        if length > spec.max_length:
            raise WeightsError(f"task.max_length = {length} is more than the {spec.max_length} positions of {uri}")
        options = EmbedOptions(
            column=plan.text_column,
            pooling=plan.pooling,
            normalise=plan.normalise,
            truncate=plan.too_long == "truncate",
            max_length=length,
            batch_rows=plan.batch_rows,
        )
        tokenizer = TokenizerRef(name=uri, directory=uri, vocab_size=spec.vocab_size).load()
        return cls(uri, tokenizer, options)

    def work(self, rows: pa.Table) -> Worked:
        """A vector for each text; one that is null, no UTF-8 or too long is a bad row."""
        texts = to_arrays(rows, [self._options.column])
        bad = dict(texts.bad)
        usable = [row for row in range(rows.num_rows) if row not in bad]
        tokens = self._tokens({row: texts.arrays[self._options.column][row] for row in usable}, bad)
        good = np.array(sorted(tokens), np.int64)
        with self._turn:
            began = time.monotonic()
            vectors = self._vectors(tokens)
            busy = time.monotonic() - began
        flat = np.array([vectors[row] for row in good], np.float32).reshape(-1)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat), self._spec.hidden_size)
        return Worked(
            columns=pa.table({"embedding": column}),
            good=good,
            bad=tuple(sorted(bad.items())),
            tokens=sum(map(len, tokens.values())),
            busy_seconds=busy,
        )

    def _tokens(self, texts: dict[int, str], bad: dict[int, str]) -> dict[int, list[int]]:
        """The token ids of each row that is good."""
        found, limit = {}, self._options.max_length
        read = read_prompts(self._tokenizer, texts)
        bad |= read.bad
        for row, ids in read.ids.items():
            if len(ids) > limit and not self._options.truncate:
                bad[row] = f"{len(ids)} tokens are more than {limit}"
            else:
                # The last token is the one that ends every text.
                found[row] = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
        return found

    def _vectors(self, tokens: dict[int, list[int]]) -> dict[int, np.ndarray]:
        by_length: dict[int, list[int]] = {}
        for row, ids in tokens.items():
            by_length.setdefault(self._compiled_length(len(ids)), []).append(row)
        batches = [
            (rows[at : at + self._batch_rows], length)
            for length, rows in sorted(by_length.items())
            for at in range(0, len(rows), self._batch_rows)
        ]
        # All are on their way before the first is waited for.
        launched = [(rows, self._launch([tokens[row] for row in rows], length)) for rows, length in batches]
        return {row: vector for rows, batch in launched for row, vector in zip(rows, np.asarray(batch), strict=False)}

    def _compiled_length(self, length: int) -> int:
        return min(max(_SHORTEST, 1 << (length - 1).bit_length()), self._options.max_length)

    def _launch(self, batch: list[list[int]], length: int) -> Array:
        tokens = np.zeros((self._batch_rows, length), np.int32)
        mask = np.zeros((self._batch_rows, length), bool)
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


def _own_length(uri: str) -> int:
    """The length that the model was made for: sentence-transformers' own file says it, else the config does."""
    own = read_json(uri, "sentence_bert_config.json") or {}
    config = read_json(uri, "config.json") or {}
    return int(own.get("max_seq_length") or config["max_position_embeddings"])
