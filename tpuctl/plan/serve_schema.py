"""The parts of a plan that only serving has: the endpoint, the engine behind it, and how text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServeDtype = Literal["bfloat16", "float32"]
ServeEngine = Literal["tpuctl", "vllm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPlan:
    """The tokenizer's name or place. ``chat_template`` is a file in place of the tokenizer's own template."""

    tokenizer: str
    chat_template: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """How much the engine holds. ``page_bytes`` is one KV page of all layers, over all devices."""

    dtype: ServeDtype
    max_length: int
    max_sequences: int
    max_step_tokens: int
    page_size: int
    num_pages: int
    page_bytes: int
    prefix_cache: bool
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointPlan:
    """Where the model is served, under which name, and to whom.

    ``api_key_env`` names a variable of the job that holds the keys, ``api_key_file`` a file on the host. There are
    ``min_replicas`` to ``max_replicas`` of the model, each on a slice of its own.
    """

    name: str
    host: str
    port: int
    api_key_file: str | None
    api_key_env: str | None
    max_waiting: int
    max_body_bytes: int
    timeout_seconds: float
    drain_seconds: float
    min_replicas: int
    max_replicas: int
    idle_seconds: float

    @property
    def is_replicated(self) -> bool:
        """Whether replicas come and go: otherwise there is one, and nothing between it and its clients."""
        return self.max_replicas > 1 or self.min_replicas < 1

    @property
    def is_open(self) -> bool:
        """Whether anyone who reaches it may use it."""
        return self.api_key_file is None and self.api_key_env is None

    @property
    def is_local(self) -> bool:
        """Whether only its own machine reaches it."""
        return self.host in ("127.0.0.1", "::1", "localhost")
