"""What one step computes, for one device of the mesh: pure functions, no jit.

A ragged row of tokens goes through the decoder over the KV pages; from the last token of each sequence comes one
drawn token. On a mesh these run inside ``jax.shard_map``, heads and vocabulary split over ``tensor``: each device
makes all rows' logits for its part of the vocabulary, trades them for whole rows, and draws its share of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int, Int32

from tpuctl.engine import sampling
from tpuctl.engine.adapters import Adapters
from tpuctl.engine.attention import PagedAttention, PagedKernel, PageShape
from tpuctl.engine.bounds import EXCLUDED
from tpuctl.engine.sampling import Explained, SamplingRows
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import Decoder, ForwardOptions
from tpuctl.nn.params import ParamTree, bind
from tpuctl.nn.partition import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What a step leaves on the devices for the host to fetch."""

    tokens: Int32[Array, " r"]
    explained: Explained
    hidden: Float[Array, "t d"]


jax.tree_util.register_dataclass(Made)


def own_ranks(adapters: Adapters, index: Int[Array, "b t"]) -> Bool[Array, "b t ranks"]:
    """Which of the ranks of all adapters are those of each token's own."""
    return index[..., None] == adapters.owners


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The step of a model, whole or in parts.

    Attributes:
        spec: The model, or some layers of it.
        partition: What is split over ``tensor``.
        pages: Sizes of one device's pages.
        kernel: Of attention.
        real_vocab: Token ids that exist; ``None`` for all.
        unroll: Whether the layers stand one after the other in the program.
        adapters: Those in the parameters, of which ``inputs["adapters"]`` has the index of each token's.
    """

    spec: ModelSpec
    partition: Partition
    pages: PageShape
    kernel: PagedKernel
    real_vocab: int | None
    unroll: bool = False
    adapters: Adapters | None = None

    def run(self, params: ParamTree, state: dict[str, Array], inputs: dict[str, Any]) -> tuple[dict[str, Array], Made]:
        """The state after a step (pages, tokens last drawn, token counts), and what the host may fetch."""
        x = self.enter(params, state["last"], inputs)
        x, pages = self.layers(params, x, state["pages"], inputs)
        hidden = self.finish(params, x[0])
        state, drawn, explained = self.leave(params, hidden[inputs["last"]], state, inputs)
        return state | {"pages": pages}, Made(tokens=drawn, explained=explained, hidden=hidden)

    def enter(self, params: ParamTree, last: Int32[Array, " slots"], inputs: dict[str, Any]) -> Float[Array, "1 t d"]:
        """What goes into the first layer."""
        tokens = jnp.where(inputs["tokens"] < 0, last[inputs["token_slots"]], inputs["tokens"])
        decoder = self._bound(params)
        return decoder.embed(tokens[None], inputs["positions"][None], partition=self.partition)

    def layers(
        self, params: ParamTree, x: Float[Array, "1 t d"], pages: Array, inputs: dict[str, Any], first: Array | int = 0
    ) -> tuple[Float[Array, "1 t d"], Array]:
        """Through the layers of ``spec``, the first of which is the model's layer ``first``; and the pages."""
        attention = PagedAttention(
            layout=inputs["layout"],
            first_layer=first,
            shape=self.pages,
            kernel=self.kernel,
            window=self.spec.sliding_window if self.spec.local_layers else None,
            all_local=len(self.spec.local_layers) == self.spec.num_layers,
        )
        return self._bound(params).run_layers(
            x,
            inputs["positions"][None],
            attend=attention,
            state=pages,
            options=ForwardOptions(
                partition=self.partition,
                unroll=self.unroll,
                adapter_ranks=None if self.adapters is None else own_ranks(self.adapters, inputs["adapters"][None]),
            ),
        )

    def finish(self, params: ParamTree, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        """Hidden states as the head takes them."""
        return self._bound(params).finish(x[None], partition=self.partition)[0]

    def leave(
        self, params: ParamTree, hidden: Float[Array, "r d"], state: dict[str, Array], inputs: dict[str, Any]
    ) -> tuple[dict[str, Array], Int32[Array, " r"], Explained]:
        """The tokens drawn from finished hidden states, and the state but for the pages."""
        rows, slots = inputs["sampling"], inputs["slots"]
        raw = self._logits(self._bound(params), hidden)
        drawn, explained = self._draw(raw, rows, state["counts"][slots])
        counts = self._counted(state["counts"], rows, slots, drawn)
        return {"last": state["last"].at[slots].set(drawn), "counts": counts}, drawn, explained

    def explain(self, params: ParamTree, hidden: Float[Array, "r d"], targets: Int32[Array, " r"]) -> Explained:
        """Log probabilities of ``targets`` as predicted at tokens with these finished hidden states."""
        raw = self._logits(self._bound(params), hidden)
        mine = sampling.explain(self._whole_rows(raw), self._my_rows(targets))
        told: Explained = jax.tree.map(self._everyones, mine)
        return told

    def _bound(self, params: ParamTree) -> Decoder:
        return bind(self.spec, params, lora=None if self.adapters is None else self.adapters.lora)

    def _logits(self, decoder: Decoder, hidden: Float[Array, "r d"]) -> Float32[Array, "r v_shard"]:
        """This device's part of the vocabulary; rows of the head that stand for no token are excluded."""
        logits = decoder.project_to_vocab(hidden, partition=self.partition)
        if self.real_vocab is None:
            return logits
        token = lax.broadcasted_iota(jnp.int32, logits.shape, 1) + self.partition.vocab_offset(logits.shape[1])
        return jnp.where(token < self.real_vocab, logits, EXCLUDED)

    def _draw(self, raw: Array, rows: SamplingRows, counts: Array) -> tuple[Int32[Array, " r"], Explained]:
        shaped = sampling.shape(raw, rows, counts, first_token=self.partition.vocab_offset(raw.shape[1]))
        drawn = self._everyones(sampling.draw(self._whole_rows(shaped), self._my_rows(rows)))

        def explained(_: None) -> Explained:
            mine = sampling.explain(self._whole_rows(raw), self._my_rows(drawn))
            told: Explained = jax.tree.map(self._everyones, mine)
            return told

        shapes = jax.eval_shape(explained, None)
        unexplained = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return drawn, lax.cond(rows.explained, explained, lambda _: unexplained, None)

    def _counted(self, counts: Array, rows: SamplingRows, slots: Array, drawn: Array) -> Array:
        offset = self.partition.vocab_offset(counts.shape[1])

        def change(_: Array, counts: Array) -> Array:
            return counts.at[slots].set(sampling.count(counts[slots], drawn, first_token=offset))

        # A loop of one turn or none: what it carries is updated in place, which a conditional may copy.
        counted: Array = lax.fori_loop(0, rows.penalised.astype(jnp.int32), change, counts)
        return counted

    def _whole_rows(self, part: Float32[Array, "r v_shard"]) -> Float32[Array, "r_shard v"]:
        """Trade all rows of a part of the vocabulary for some rows of all of it."""
        if self.partition.tensor.size == 1:
            return part
        rows: Array = lax.all_to_all(part, "tensor", split_axis=0, concat_axis=1, tiled=True)
        return rows

    def _my_rows(self, rows: Any) -> Any:
        size = self.partition.tensor.size
        if size == 1:
            return rows

        def mine(x: Array) -> Array:
            if not x.ndim:
                return x
            return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * (x.shape[0] // size), x.shape[0] // size)

        return jax.tree.map(mine, rows)

    def _everyones(self, mine: Array) -> Array:
        if self.partition.tensor.size == 1:
            return mine
        rows: Array = lax.all_gather(mine, "tensor", axis=0, tiled=True)
        return rows
