"""The model that is served: its name, its tokenizer, and how much it can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.text import Tokenizer
from tpuctl.text.chat import Chat


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """What clients are told of a model.

    Attributes:
        name: As clients call it.
        max_length: Tokens of a sequence at most, prompt and output.
        created: Unix seconds.
        adapters: Further names under which the model is served, each with a LoRA adapter, and where that is from.
    """

    name: str
    max_length: int
    created: int
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may give as its model."""
        return (self.name, *self.adapters)

    def card(self, name: str) -> dict[str, Any]:
        """The entry of one of the names in the list of models."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "tpuctl",
            "root": self.adapters.get(name, self.name),
            "parent": self.name if name in self.adapters else None,
            "max_model_len": self.max_length,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Served(Listed):
    """What requests are made for.

    Attributes:
        tokenizer: Text to token ids and back.
        chat: With its chat template; None for a model without one.
        vocab_size: Token ids that exist.
    """

    tokenizer: Tokenizer
    chat: Chat | None
    vocab_size: int

    def adapter(self, name: str) -> str | None:
        """The adapter that a model's name stands for."""
        return name if name in self.adapters else None
