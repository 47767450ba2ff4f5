"""The spec of an encoder: what a BERT's ``config.json`` says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tpuctl.modelspec.config import Config, ModelConfigError

ENCODERS = ("bert",)
_WANTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSpec:
    """An encoder's architecture."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_size: int
    max_length: int
    norm_eps: float

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self:
        """The spec of a ``config.json``.

        Raises:
            ModelConfigError: not a BERT, one of a kind that this encoder isn't, or a key missing or wrong.
        """
        reader = Config(config)
        for key, value in _WANTED.items():
            reader.require(key, value, why=f"this encoder has {value!r}")
        spec = cls(
            vocab_size=reader.take_size("vocab_size"),
            hidden_size=reader.take_size("hidden_size"),
            num_layers=reader.take_size("num_hidden_layers", most=10_000),
            num_heads=reader.take_size("num_attention_heads"),
            mlp_size=reader.take_size("intermediate_size"),
            max_length=reader.take_size("max_position_embeddings"),
            norm_eps=reader.take_number("layer_norm_eps", 1e-12),
        )
        if spec.hidden_size % spec.num_heads:
            raise ModelConfigError(f"num_attention_heads: {spec.num_heads} do not divide {spec.hidden_size}")
        return spec


def weight_shapes(spec: EncoderSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Every weight's name, as Hugging Face has it, and its shape."""
    d, mlp = spec.hidden_size, spec.mlp_size
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("embeddings.word_embeddings.weight", (spec.vocab_size, d)),
        ("embeddings.position_embeddings.weight", (spec.max_length, d)),
        ("embeddings.token_type_embeddings.weight", (2, d)),
        *_norm_shapes("embeddings.LayerNorm", d),
    ]
    for layer in range(spec.num_layers):
        head = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes += _dense_shapes(f"{head}.attention.self.{part}", d, d)
        shapes += _dense_shapes(f"{head}.attention.output.dense", d, d)
        shapes += _norm_shapes(f"{head}.attention.output.LayerNorm", d)
        shapes += _dense_shapes(f"{head}.intermediate.dense", mlp, d)
        shapes += _dense_shapes(f"{head}.output.dense", d, mlp)
        shapes += _norm_shapes(f"{head}.output.LayerNorm", d)
    return shapes


def num_encoder_parameters(spec: EncoderSpec) -> int:
    """Weights of the whole encoder."""
    return sum(math.prod(shape) for _, shape in weight_shapes(spec))


def _norm_shapes(name: str, size: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (size,)), (f"{name}.bias", (size,))]


def _dense_shapes(name: str, out: int, inside: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (out, inside)), (f"{name}.bias", (out,))]
