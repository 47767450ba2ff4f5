"""The model that is served: its name, its tokenizer, and how much it can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuctl.text import Tokenizer
from tpuctl.text.chat import Chat


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What requests are made for.

    Attributes:
        name: As clients call it.
        tokenizer: Text to token ids and back.
        chat: With its chat template; None for a model without one.
        max_length: Tokens of a sequence at most, prompt and output.
        vocab_size: Token ids that exist.
        created: Unix seconds.
        adapters: Further names under which the model is served, each with a LoRA adapter, and where that is from.
    """

    name: str
    tokenizer: Tokenizer
    chat: Chat | None
    max_length: int
    vocab_size: int
    created: int
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may give as its model."""
        return (self.name, *self.adapters)

    def adapter(self, name: str) -> str | None:
        """The adapter that a model's name stands for."""
        return name if name in self.adapters else None
