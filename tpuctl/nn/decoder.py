"""The decoder: one pre-norm transformer, configured by a ``ModelSpec`` and by nothing else.

Parameters of all layers are stacked and the layers run under one ``lax.scan``, so compile time and program size do
not grow with depth. Runs on one device as it is, and on a mesh inside ``jax.shard_map`` with a ``Partition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Int, Key

from tpuctl.modelspec import ModelSpec
from tpuctl.nn.attention import CONTEXT_NAME, AttentionKernel, attend
from tpuctl.nn.layers import ParamMaker, RMSNorm, Rotary, SwiGLU, dropout, project, project_back, rotary
from tpuctl.nn.partition import WHOLE, Partition
from tpuctl.plan.schema import RematPolicy

_EMBED_STD = 0.02
_MAX_WEIGHTS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOptions:
    """How the decoder runs: nothing here changes what it computes, but for ``dropout``."""

    kernel: AttentionKernel = "reference"
    remat: RematPolicy = "none"
    dropout: float = 0.0
    partition: Partition = WHOLE


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """Rows of tokens with where they stand. ``dropout_keys``: one per row, or ``None`` for no dropout."""

    tokens: Int[Array, "b s"]
    positions: Int[Array, "b s"]
    segment_ids: Int[Array, "b s"]
    dropout_keys: Key[Array, " b"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Context:
    """What every layer needs beside its input."""

    rotary: Rotary
    segment_ids: Int[Array, "b s"]
    dropout_keys: Key[Array, " b"] | None


for _node in (TokenRows, _Context):
    jax.tree_util.register_dataclass(_node)


class Attention(nnx.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, spec: ModelSpec, *, out_std: float, make: ParamMaker) -> None:
        hidden, heads, kv_heads, dim = spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
        std = hidden**-0.5
        self.query = make.normal((hidden, heads, dim), ("embed", "heads", "head_dim"), std=std)
        self.key = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        self.value = make.normal((hidden, kv_heads, dim), ("embed", "kv_heads", "head_dim"), std=std)
        out_axes = ("embed", "heads", "head_dim")
        self.out = make.normal((hidden, heads, dim), out_axes, std=out_std * (heads * dim) ** -0.5)

    def __call__(self, x: Float[Array, "b s d"], context: _Context, options: ForwardOptions) -> Float[Array, "b s d"]:
        """Partial sums over ``tensor``, to be added up by the caller's ``scatter_sequence``."""
        weight = options.partition.weight
        q, k, v = (project(x, weight(param)) for param in (self.query, self.key, self.value))
        q, k = context.rotary.rotate(q), context.rotary.rotate(k)
        mixed = attend(q, k, v, segment_ids=context.segment_ids, kernel=options.kernel)
        return project_back(mixed, weight(self.out))


class Block(nnx.Module):
    """One layer: attention, then the MLP, each on the normalised input and added to it."""

    def __init__(self, spec: ModelSpec, *, make: ParamMaker) -> None:
        out_std = (2 * spec.num_layers) ** -0.5  # keeps the residual stream's variance flat in depth (GPT-2)
        self.attention_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        self.attention = Attention(spec, out_std=out_std, make=make)
        self.mlp_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        self.mlp = SwiGLU(spec.hidden_size, spec.mlp_size, out_std=out_std, make=make)

    def __call__(self, x: Float[Array, "b s d"], context: _Context, options: ForwardOptions) -> Float[Array, "b s d"]:
        """The layer's output; ``x`` and the result are split along the sequence over ``tensor``."""
        part = options.partition
        attended = self.attention(part.gather_sequence(self.attention_norm(x)), context, options)
        x = x + _dropped(part.scatter_sequence(attended), context, options, site=0)
        mixed = self.mlp(part.gather_sequence(self.mlp_norm(x)), partition=part)
        return x + _dropped(part.scatter_sequence(mixed), context, options, site=1)


class Decoder(nnx.Module):
    """Token rows → hidden states; the head's matrix turns those into logits."""

    def __init__(self, spec: ModelSpec, *, key: Key[Array, ""]) -> None:
        keys = iter(jax.random.split(key, _MAX_WEIGHTS))
        make = ParamMaker(keys=keys)
        self.num_layers = spec.num_layers
        self.head_dim = spec.head_dim
        self.rope_theta = spec.rope_theta
        self.embedding = make.normal((spec.vocab_size, spec.hidden_size), ("vocab", "embed"), std=_EMBED_STD)
        self.layers = Block(spec, make=ParamMaker(keys=keys, layers=spec.num_layers))
        self.final_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_eps, make=make)
        head_shape = (spec.hidden_size, spec.vocab_size)
        self.head = None if spec.tied_embedding else make.normal(head_shape, ("embed", "vocab"), std=_EMBED_STD)

    def hidden(self, rows: TokenRows, *, options: ForwardOptions) -> Float[Array, "b s d"]:
        """Hidden states after the last norm, whole along the sequence, in the dtype of the weights."""
        context = _Context(
            rotary=rotary(rows.positions, head_dim=self.head_dim, theta=self.rope_theta),
            segment_ids=rows.segment_ids,
            dropout_keys=rows.dropout_keys,
        )
        x = options.partition.embed(self.embedding, rows.tokens)
        x = self._run_layers(x, context, options)
        return options.partition.gather_sequence(self.final_norm(x))

    def head_matrix(self, *, partition: Partition) -> Float[Array, "d v_shard"]:
        """The matrix from hidden states to logits, whole over ``fsdp``: the embedding's transpose if tied."""
        if self.head is None:
            return partition.weight_transposed(self.embedding)
        return partition.weight(self.head)

    def logits(self, rows: TokenRows) -> Float[Array, "b s v"]:
        """All logits, f32, on one device: for tests and small evaluations."""
        hidden = self.hidden(rows, options=ForwardOptions())
        return jnp.dot(hidden, self.head_matrix(partition=WHOLE), preferred_element_type=jnp.float32)

    def _run_layers(self, x: Float[Array, "b s d"], context: _Context, options: ForwardOptions) -> Array:
        graph, stacked = nnx.split(self.layers)

        def layer(x: Array, layer_params: tuple[Any, Array]) -> tuple[Array, None]:
            params, index = layer_params
            inside = _with_layer_keys(context, index)
            return nnx.merge(graph, params)(x, inside, options), None

        indices = jnp.arange(self.num_layers)
        return lax.scan(rematerialised(layer, options.remat), x, (stacked, indices))[0]


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


def _with_layer_keys(context: _Context, layer: Array) -> _Context:
    if context.dropout_keys is None:
        return context
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(context.dropout_keys, layer)
    return _Context(rotary=context.rotary, segment_ids=context.segment_ids, dropout_keys=keys)


def _dropped(x: Float[Array, "b s d"], context: _Context, options: ForwardOptions, *, site: int) -> Array:
    if context.dropout_keys is None or not options.dropout:
        return x
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(context.dropout_keys, site)
    return dropout(x, rate=options.dropout, keys=keys, partition=options.partition)
