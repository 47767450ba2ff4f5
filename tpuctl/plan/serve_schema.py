"""The parts of a plan that only serving has: the endpoint, the engine behind it, and how text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpuctl.plan.infer_schema import PoolingKind
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype

ServeDtype = Literal["bfloat16", "float32"]
ServeEngine = Literal["tpuctl", "vllm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPlan:
    """The tokenizer's name or place, a run directory for the run's own. ``chat_template`` is a file in place of the
    tokenizer's own template."""

    tokenizer: str
    chat_template: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedCheckpointPlan:
    """A checkpoint of a training run; ``step`` None is the newest that is complete when the endpoint starts."""

    run: str
    step: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """How much the engine holds. ``page_bytes`` is one KV page of all layers, over all devices.

    ``weights`` is what matrices are quantised to, ``kv_dtype`` what pages are kept in; ``None`` for ``dtype``.
    ``speculate`` is how many draft tokens a sequence may have in a step.
    """

    dtype: ServeDtype
    weights: QuantisedDtype | None
    kv_dtype: KvDtype | None
    max_length: int
    max_sequences: int
    max_step_tokens: int
    speculate: int
    page_size: int
    num_pages: int
    page_bytes: int
    prefix_cache: bool
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderPlan:
    """An encoder in a folder; ``batch_rows`` texts, each of at most ``max_length`` tokens, are computed at once."""

    uri: str
    parameters: int
    pooling: PoolingKind
    normalise: bool
    max_length: int
    batch_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPlan:
    """Where requests arrive, and whose.

    ``api_key_env`` names a variable of the job that holds the keys, ``api_key_file`` a file on the host. The limits of
    a key are each key's own. ``tls_cert`` and ``tls_key`` are files on the host, both or none.
    """

    host: str
    port: int
    api_key_file: str | None
    api_key_env: str | None
    key_requests_per_second: float | None
    key_concurrent: int | None
    tls_cert: str | None
    tls_key: str | None
    max_body_bytes: int
    timeout_seconds: float
    drain_seconds: float

    @property
    def is_open(self) -> bool:
        """Whether anyone who reaches it may use it."""
        return self.api_key_file is None and self.api_key_env is None

    @property
    def is_local(self) -> bool:
        """Whether only its own machine reaches it."""
        return self.host in ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointPlan(AddressPlan):
    """A model's endpoint: the address, and the name under which the model is served there.

    There are ``min_replicas`` to ``max_replicas`` of it, each on a slice of its own.
    """

    name: str
    max_waiting: int
    min_replicas: int
    max_replicas: int
    idle_seconds: float

    @property
    def is_replicated(self) -> bool:
        """Whether replicas come and go: otherwise there is one, and nothing between it and its clients."""
        return self.max_replicas > 1 or self.min_replicas < 1
