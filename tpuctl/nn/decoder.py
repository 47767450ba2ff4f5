"""The decoder: one pre-norm transformer, configured by a ``ModelSpec`` and by nothing else.

Parameters of all layers are stacked and the layers run under one ``lax.scan``, so compile time and program size do
not grow with depth. Runs on one device as it is, and on a mesh inside ``jax.shard_map`` with a ``Partition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Int, Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.attention import CONTEXT_NAME, NO_WINDOW, Attend, AttentionKernel, LayerView, RowAttention
from tpuctl.nn.layers import ParamMaker, RMSNorm, Rotary, SwiGLU, dropout, project, project_back, rotary
from tpuctl.nn.partition import WHOLE, Partition
from tpuctl.plan.schema import RematPolicy

_EMBED_STD = 0.02
_MAX_WEIGHTS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOptions:
    """How the decoder runs: nothing here changes what it computes, but for ``dropout``.

    ``dropout_keys``: one per row, or ``None`` for no dropout. ``kernel`` is for attention within rows only.
    """

    kernel: AttentionKernel = "reference"
    remat: RematPolicy = "none"
    dropout: float = 0.0
    dropout_keys: Key[Array, " b"] | None = None
    partition: Partition = WHOLE


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """Rows of tokens with where they stand."""

    tokens: Int[Array, "b s"]
    positions: Int[Array, "b s"]
    segment_ids: Int[Array, "b s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Surroundings:
    """What a layer needs beside its parameters and its input. ``options`` hold this layer's dropout keys."""

    rotary: Rotary
    view: LayerView
    attend: Attend
    options: ForwardOptions


jax.tree_util.register_dataclass(TokenRows)


class Attention(nnx.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker) -> None:
        hidden, heads, kv_heads, dim = spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
        std = hidden**-0.5
        self.scale = dim**-0.5
        self.query = make.normal((hidden, heads, dim), ("embed", "heads", "head_dim"), std=std)
        self.key = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        self.value = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        out_axes = ("embed", "heads", "head_dim")
        self.out = make.normal((hidden, heads, dim), out_axes, std=out_std * (heads * dim) ** -0.5)

    def __call__(
        self, x: Float[Array, "b s d"], state: Any, around: _Surroundings
    ) -> tuple[Float[Array, "b s d"], Any]:
        """Partial sums over ``tensor``, to be added up by the caller's ``scatter_sequence``; and the next state."""
        weight = around.options.partition.weight
        q, k, v = (project(x, weight(param)) for param in (self.query, self.key, self.value))
        q, k = around.rotary.rotate(q), around.rotary.rotate(k)
        scaled = q * jnp.asarray(self.scale, q.dtype)
        mixed, state = around.attend(scaled, k, v, layer=around.view, state=state)
        return project_back(mixed, weight(self.out)), state


class Block(nnx.Module):
    """One layer: attention, then the MLP, each on the normalised input and added to it."""

    def __init__(self, spec: ModelSpec, *, make: ParamMaker) -> None:
        out_std = (2 * spec.num_layers) ** -0.5  # keeps the residual stream's variance flat in depth (GPT-2)
        self.attention_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        self.attention = Attention(spec, out_std=out_std, make=make)
        self.mlp_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        self.mlp = SwiGLU(spec.hidden_size, spec.mlp_size, out_std=out_std, make=make)

    def __call__(
        self, x: Float[Array, "b s d"], state: Any, around: _Surroundings
    ) -> tuple[Float[Array, "b s d"], Any]:
        """The layer's output and the next state; ``x`` and the output are split along the sequence over ``tensor``."""
        part = around.options.partition
        attended, state = self.attention(part.gather_sequence(self.attention_norm(x)), state, around)
        x = x + _dropped(part.scatter_sequence(attended), around.options, site=0)
        mixed = self.mlp(part.gather_sequence(self.mlp_norm(x)), partition=part)
        return x + _dropped(part.scatter_sequence(mixed), around.options, site=1), state


class Decoder(nnx.Module):
    """Token rows → hidden states; the head's matrix turns those into logits."""

    def __init__(self, spec: ModelSpec, *, key: Key[Array, ""]) -> None:
        keys = iter(jax.random.split(key, _MAX_WEIGHTS))
        make = ParamMaker(keys=keys)
        self.spec = spec
        self.embedding = make.normal((spec.vocab_size, spec.hidden_size), ("vocab", "embed"), std=_EMBED_STD)
        self.layers = Block(spec, make=ParamMaker(keys=keys, layers=spec.num_layers))
        self.final_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        head_shape = (spec.hidden_size, spec.vocab_size)
        self.head = None if spec.tied_embedding else make.normal(head_shape, ("embed", "vocab"), std=_EMBED_STD)

    def hidden(self, rows: TokenRows, *, options: ForwardOptions) -> Float[Array, "b s d"]:
        """Hidden states of rows that hold all there is to see: ``run`` with attention within their segments."""
        attend = RowAttention(
            segment_ids=rows.segment_ids,
            kernel=options.kernel,
            window=self.spec.sliding_window if self.spec.local_layers else None,
            all_local=len(self.spec.local_layers) == self.spec.num_layers,
        )
        return self.run(rows.tokens, rows.positions, attend=attend, state=(), options=options)[0]

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
        turn = rotary(positions, head_dim=self.spec.head_dim, theta=self.spec.rope_theta)
        x = options.partition.embed(self.embedding, tokens)
        graph, stacked = nnx.split(self.layers)

        def layer(carry: tuple[Array, Any], this: tuple[Any, LayerView]) -> tuple[tuple[Array, Any], None]:
            params, view = this
            inside = replace(options, dropout_keys=_folded(options.dropout_keys, view.index))
            around = _Surroundings(rotary=turn, view=view, attend=attend, options=inside)
            return nnx.merge(graph, params)(*carry, around), None

        (x, state), _ = lax.scan(rematerialised(layer, options.remat), (x, state), (stacked, self._views()))
        return options.partition.gather_sequence(self.final_norm(x)), state

    def head_matrix(self, *, partition: Partition) -> Float[Array, "d v_shard"]:
        """The matrix from hidden states to logits, whole over ``fsdp``: the embedding's transpose if tied."""
        if self.head is None:
            return partition.weight_transposed(self.embedding)
        return partition.weight(self.head)

    def logits(self, rows: TokenRows) -> Float[Array, "b s v"]:
        """All logits, f32, on one device: for tests and small evaluations."""
        hidden = self.hidden(rows, options=ForwardOptions())
        return jnp.dot(hidden, self.head_matrix(partition=WHOLE), preferred_element_type=jnp.float32)

    def _views(self) -> LayerView:
        """Of all layers, stacked."""
        spec = self.spec
        local = dict.fromkeys(spec.local_layers, spec.sliding_window)
        windows = [local.get(layer) or NO_WINDOW for layer in range(spec.num_layers)]
        return LayerView(
            index=jnp.arange(spec.num_layers), window=jnp.asarray(windows, jnp.int32), softcap=spec.attention_softcap
        )


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


def _dropped(x: Float[Array, "b s d"], options: ForwardOptions, *, site: int) -> Array:
    if options.dropout_keys is None or not options.dropout:
        return x
    keys = _folded(options.dropout_keys, site)
    return dropout(x, rate=options.dropout, keys=keys, partition=options.partition)


def _folded(keys: Any, number: Array | int) -> Any:
    return None if keys is None else jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
