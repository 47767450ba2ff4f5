"""A bidirectional encoder (BERT: Devlin et al. 2018), for embeddings. Weights have their Hugging Face names.

Small models on one host: every device holds all weights, and the rows of a batch are dealt to the devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from tpuctl.errors import WeightsError
from tpuctl.model_folder import open_weights, read_config
from tpuctl.modelspec.encoder import EncoderSpec, weight_shapes
from tpuctl.safetensors import Tensor
from tpuctl.storage import open_storage

Weights = dict[str, Array]

_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
# What a folder may hold besides: the head of the classification it was trained with, and a constant.
_UNUSED = re.compile(r"pooler\.|embeddings\.position_ids|cls\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """An encoder with its weights."""

    spec: EncoderSpec
    weights: Weights

    def hidden(
        self, tokens: Int[Array, "rows length"], mask: Bool[Array, "rows length"]
    ) -> Float[Array, "rows length hidden"]:
        """The last layer's hidden states; where ``mask`` is false is padding, which nothing attends to."""
        states: Array = encode(self.weights, tokens, mask, spec=self.spec)
        return states


def load_encoder(uri: str) -> Encoder:
    """The encoder of a model folder, in float32 in host memory.

    Raises:
        WeightsError: the folder's tensors are not exactly those of its config.
        StorageError: it can't be read.
    """
    spec = EncoderSpec.of_config(read_config(uri))
    found = {_plain(name): tensor for name, tensor in open_weights(uri).tensors.items()}
    found = {name: tensor for name, tensor in found.items() if not _UNUSED.match(name)}
    wanted = dict(weight_shapes(spec))
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise WeightsError(f"{uri}: missing {missing[:5] or 'nothing'}, not understood {unknown[:5] or 'nothing'}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name] or tensor.dtype not in _DTYPES:
            raise WeightsError(f"{tensor.file}: {tensor}, expected {list(wanted[name])} of F32, F16 or BF16")
    # Whole, as they are small: then a bucket's checksums hold for them.
    files = {uri: open_storage(uri).read(uri).data for uri in {tensor.file for tensor in found.values()}}
    return Encoder(spec=spec, weights={name: jnp.asarray(_values(found[name], files)) for name in wanted})


@partial(jax.jit, static_argnames="spec")
def encode(
    weights: Weights, tokens: Int[Array, "rows length"], mask: Bool[Array, "rows length"], *, spec: EncoderSpec
) -> Float[Array, "rows length hidden"]:
    """The last layer's hidden states, computed in the weights' dtype at the highest matmul precision."""
    with jax.default_matmul_precision("highest"):
        x = weights["embeddings.word_embeddings.weight"][tokens]
        x += weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        x += weights["embeddings.token_type_embeddings.weight"][0]
        x = _norm(x, weights, "embeddings.LayerNorm", spec)
        for layer in range(spec.num_layers):
            x = _layer(x, mask, weights, f"encoder.layer.{layer}", spec)
        return x


def _layer(x: Array, mask: Array, weights: Weights, head: str, spec: EncoderSpec) -> Array:
    context = _attend(x, mask, weights, f"{head}.attention.self", spec)
    attended = _dense(context, weights, f"{head}.attention.output.dense")
    x = _norm(x + attended, weights, f"{head}.attention.output.LayerNorm", spec)
    inner = jax.nn.gelu(_dense(x, weights, f"{head}.intermediate.dense"), approximate=False)
    return _norm(x + _dense(inner, weights, f"{head}.output.dense"), weights, f"{head}.output.LayerNorm", spec)


def _attend(x: Array, mask: Array, weights: Weights, head: str, spec: EncoderSpec) -> Array:
    def heads(part: str) -> Array:
        return _dense(x, weights, f"{head}.{part}").reshape(*x.shape[:2], spec.num_heads, -1)

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = jnp.einsum("rqhd,rkhd->rhqk", query, key) / np.sqrt(query.shape[-1])
    # A row that is all padding attends to all of it: any number will do but none that isn't one.
    scores = jnp.where(mask[:, None, None, :], scores, np.finfo(np.float32).min)
    context = jnp.einsum("rhqk,rkhd->rqhd", jax.nn.softmax(scores, axis=-1), value)
    return context.reshape(x.shape)


def _dense(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(x: Array, weights: Weights, name: str, spec: EncoderSpec) -> Array:
    x -= x.mean(axis=-1, keepdims=True)
    x *= jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + spec.norm_eps)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _plain(name: str) -> str:
    """The name without the prefix that a model with a head has, and with today's names for a norm's weights."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _values(tensor: Tensor, files: Mapping[str, bytes]) -> np.ndarray:
    data = files[tensor.file][tensor.start : tensor.end]
    stored = np.frombuffer(data, _DTYPES[tensor.dtype]).reshape(tensor.shape)
    return np.asarray(stored, np.float32)
