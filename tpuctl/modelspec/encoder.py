"""The spec of an encoder: what a BERT's ``config.json`` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tpuctl.modelspec.config import Config

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
        return cls(
            vocab_size=reader.take_size("vocab_size"),
            hidden_size=reader.take_size("hidden_size"),
            num_layers=reader.take_size("num_hidden_layers", most=10_000),
            num_heads=reader.take_size("num_attention_heads"),
            mlp_size=reader.take_size("intermediate_size"),
            max_length=reader.take_size("max_position_embeddings"),
            norm_eps=reader.take_number("layer_norm_eps", 1e-12),
        )
