"""The decoder: one pre-norm transformer, configured by a ``ModelSpec`` and by nothing else.

Parameters of all layers are stacked and the layers run under one ``lax.scan``, so compile time and program size do
not grow with depth. Runs on one device as it is, and on a mesh inside ``jax.shard_map`` with a ``Partition``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Int, Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.attention import CONTEXT_NAME, NO_WINDOW, Attend, LayerView, RowAttention
from tpuctl.nn.block import Block, ForwardOptions, Surroundings, residual_norm
from tpuctl.nn.layers import ParamMaker, folded
from tpuctl.nn.partition import WHOLE, Partition
from tpuctl.nn.quantised import Quantised
from tpuctl.nn.rotary import layer_rotaries
from tpuctl.nn.transposed import Transposed
from tpuctl.plan.train_schema import RematPolicy
from tpuctl.plan.weights_schema import LoraPlan

__all__ = ["Decoder", "ForwardOptions", "TokenRows", "rematerialised"]

_EMBED_STD = 0.02
_MAX_WEIGHTS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """Rows of tokens with where they stand."""

    tokens: Int[Array, "b s"]
    positions: Int[Array, "b s"]
    segment_ids: Int[Array, "b s"]


jax.tree_util.register_dataclass(TokenRows)


class Decoder(nnx.Module):
    """Token rows → hidden states; the head's matrix turns those into logits.

    ``lora`` puts adapters beside its projections.
    """

    def __init__(self, spec: ModelSpec, *, key: Key[Array, ""], lora: LoraPlan | None = None) -> None:
        keys = iter(jax.random.split(key, _MAX_WEIGHTS))
        make = ParamMaker(keys=keys)
        self.spec = spec
        self.embedding = make.normal((spec.vocab_size, spec.hidden_size), ("vocab", "embed"), std=_EMBED_STD)
        table_shape = (spec.max_positions, spec.hidden_size)
        learned = spec.positions == "learned"
        self.position_embedding = make.normal(table_shape, ("position", "embed"), std=_EMBED_STD) if learned else None
        self.layers = Block(spec, make=make.stacked(spec.num_layers), lora=lora)
        self.final_norm = residual_norm(spec, make)
        head_shape = (spec.hidden_size, spec.vocab_size)
        self.head = None if spec.tied_embedding else make.normal(head_shape, ("embed", "vocab"), std=_EMBED_STD)

    def hidden(self, rows: TokenRows, *, options: ForwardOptions) -> Float[Array, "b s d"]:
        """Hidden states of rows that hold all there is to see: ``run`` with attention within their segments."""
        attend = self.row_attention(rows, options=options)
        return self.run(rows.tokens, rows.positions, attend=attend, state=(), options=options)[0]

    def row_attention(self, rows: TokenRows, *, options: ForwardOptions) -> RowAttention:
        """Attention within the segments of rows, as the model's layers have it."""
        return RowAttention(
            segment_ids=rows.segment_ids,
            kernel=options.kernel,
            window=self.spec.sliding_window if self.spec.local_layers else None,
            all_local=len(self.spec.local_layers) == self.spec.num_layers,
        )

    def run(
        self,
        tokens: Int[Array, "b s"],
        positions: Int[Array, "b s"],
        *,
        attend: Attend,
        state: Any,
        options: ForwardOptions,
    ) -> tuple[Float[Array, "b s d"], Any]:
        """Hidden states after the last norm, whole along the sequence, in the dtype of the weights; and the state.

        ``state``, any pytree, goes through ``attend`` of every layer in turn: the caches of an engine, say. On a
        mesh ``s`` must divide over ``tensor``.
        """
        x = self.embed(tokens, positions, partition=options.partition)
        x, state = self.run_layers(x, positions, attend=attend, state=state, options=options)
        return self.finish(x, partition=options.partition), state

    def embed(
        self, tokens: Int[Array, "b s"], positions: Int[Array, "b s"], *, partition: Partition
    ) -> Float[Array, "b s_shard d"]:
        """What goes into the first layer."""
        x = partition.embed(self.embedding, tokens)
        if self.position_embedding is not None:
            x = x + partition.weight(self.position_embedding)[partition.sequence_shard(positions)]
        return x if self.spec.embedding_scale == 1.0 else x * jnp.asarray(self.spec.embedding_scale, x.dtype)

    def run_layers(
        self,
        x: Float[Array, "b s_shard d"],
        positions: Int[Array, "b s"],
        *,
        attend: Attend,
        state: Any,
        options: ForwardOptions,
    ) -> tuple[Float[Array, "b s_shard d"], Any]:
        """Through all layers, and the state after them."""
        rotaries = layer_rotaries(self.spec, positions)
        carry = (x, state)
        for graph, stacked, views in self._stretches():

            def layer(carry: tuple[Array, Any], this: tuple[Any, LayerView], graph: Any = graph) -> tuple[Any, None]:
                params, view = this
                around = Surroundings(
                    rotary=rotaries.of(view.window < NO_WINDOW),
                    view=view,
                    attend=attend,
                    options=replace(options, dropout_keys=folded(options.dropout_keys, view.index)),
                )
                return nnx.merge(graph, params)(*carry, around), None

            body = rematerialised(layer, options.remat)
            carry, _ = lax.scan(body, carry, (stacked, views), unroll=options.unroll or 1)
        return carry

    def finish(self, x: Float[Array, "b s_shard d"], *, partition: Partition) -> Float[Array, "b s d"]:
        """What goes into the head: normalised, and whole along the sequence."""
        return partition.gather_sequence(self.final_norm(x))

    def head_matrix(self, *, partition: Partition) -> Float[Array, "d v_shard"]:
        """The matrix from hidden states to logits, whole over ``fsdp``: the embedding's transpose if tied."""
        if self.head is None:
            return partition.weight_transposed(self.embedding)
        return partition.weight(self.head)

    def project_to_vocab(
        self, hidden: Float[Array, "*b d"], *, partition: Partition = WHOLE
    ) -> Float[Array, "*b v_shard"]:
        """Logits of this device's part of the vocabulary, f32, soft-capped where the model's are."""
        if self.head is None and partition.fsdp.size == 1:
            # Not by the transpose: XLA's CPU compiler would turn a bfloat16 table into float32 for each product.
            logits = _by_rows(hidden, self.embedding[...])
        else:
            logits = _by_columns(hidden, self.head_matrix(partition=partition))
        cap = self.spec.logits_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def logits(self, rows: TokenRows, *, options: ForwardOptions | None = None) -> Float[Array, "b s v"]:
        """All logits, f32, on one device: for tests and small evaluations."""
        return self.project_to_vocab(self.hidden(rows, options=options or ForwardOptions()))

    def _stretches(self) -> Iterator[tuple[Any, Any, LayerView]]:
        """Consecutive layers with the same parameters, as a module's graph, its stacked state and the layers' views.

        All layers are one stretch, but where some have an MLP and others experts.
        """
        views, routed = self._views(), set(self.spec.expert_layers)
        kinds = [list(group) for _, group in itertools.groupby(range(self.spec.num_layers), lambda i: i in routed)]
        if len(kinds) == 1:
            yield *nnx.split(self.layers), views
            return
        for layers in kinds:
            first, last = layers[0], layers[-1] + 1
            yield *self._part(first, last), jax.tree.map(lambda x, a=first, b=last: x[a:b], views)

    def _part(self, first: int, last: int) -> tuple[Any, Any]:
        """Layers of one kind, without the parameters of the other."""
        block = nnx.merge(*nnx.split(self.layers))
        if first in self.spec.expert_layers:
            kind, place, block.mlp = "experts", self.spec.expert_layers.index(first), None
        else:
            kind, place, block.experts = "mlp", self.spec.mlp_layers.index(first), None
        graph, stacked = nnx.split(block)

        def cut(path: Any, leaf: Array) -> Array:
            begin = place if path[0].key == kind else first
            return leaf[begin : begin + last - first]

        return graph, jax.tree_util.tree_map_with_path(cut, stacked)

    def _views(self) -> LayerView:
        """Of all layers, stacked."""
        spec = self.spec
        local = dict.fromkeys(spec.local_layers, spec.sliding_window)
        windows = [local.get(layer) or NO_WINDOW for layer in range(spec.num_layers)]
        return LayerView(
            index=jnp.arange(spec.num_layers), window=jnp.asarray(windows, jnp.int32), softcap=spec.attention_softcap
        )


def _by_columns(hidden: Float[Array, "*b d"], head: Array | Transposed | Quantised) -> Float[Array, "*b v"]:
    if isinstance(head, Quantised):
        return head.times(hidden, _by_columns, rows=hidden.ndim - 1)
    if isinstance(head, Transposed):
        return _by_rows(hidden, head.matrix)
    return jnp.dot(hidden, head, preferred_element_type=jnp.float32)


def _by_rows(hidden: Float[Array, "*b d"], table: Float[Array, "v d"]) -> Float[Array, "*b v"]:
    contracted = (((hidden.ndim - 1,), (1,)), ((), ()))
    return lax.dot_general(hidden, table, contracted, preferred_element_type=jnp.float32)


def rematerialised(layer: Callable[..., Any], policy: RematPolicy) -> Callable[..., Any]:
    """``layer`` with the intermediate results that the backward pass makes again chosen by name.

    ``full`` keeps only the layer's input, ``attention`` also attention's result, ``dots`` also every matrix
    product, ``none`` everything but the gathered weights: those are gathered again under every policy, else a
    device would hold the whole model. (So nothing may reshape a gathered weight outside of ``layers.project*``: the
    reshaped one would be kept.)
    """
    policies = jax.checkpoint_policies
    keep = {
        "none": lambda primitive, *_, **__: primitive.name != "all_gather",
        "dots": policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(CONTEXT_NAME)
        ),
        "attention": policies.save_only_these_names(CONTEXT_NAME),
        "full": policies.nothing_saveable,
    }[policy]
    return jax.checkpoint(layer, policy=keep, prevent_cse=False)
