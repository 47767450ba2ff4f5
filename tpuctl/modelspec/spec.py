"""The spec of a decoder: everything that changes what it computes, and nothing that changes how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeScaling = Literal["none", "linear", "llama3", "yarn"]
NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
Positions = Literal["rotary", "learned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSpec:
    """Scaling of the rotary embedding's frequencies, with the names of the Hugging Face ``rope_parameters``.

    ``linear`` uses ``factor`` alone; ``llama3`` also the two frequency factors and the original length (Llama 3.1);
    ``yarn`` the original length, the two betas and the attention factor (Peng et al. 2023).
    """

    scaling: RopeScaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertSpec:
    """Routed experts in place of the MLP (Shazeer et al. 2017), softmax over the router's logits.

    ``dense_layers`` keep an MLP of the spec's ``mlp_size``. With ``renormalise`` the weights of the chosen experts
    sum to one.
    """

    num_experts: int
    experts_per_token: int
    mlp_size: int
    renormalise: bool = True
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder-only transformer with pre-norm layers and grouped-query attention.

    Sizes are in elements. ``sliding_window`` w lets a query see its own key and the w - 1 before it, in the
    ``local_layers`` only; there the rotary base is ``local_rope_theta`` where that is set. A soft cap c turns x into
    c · tanh(x / c). ``attention_scale`` None stands for ``head_dim ** -0.5``.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    tied_embedding: bool = True
    embedding_scale: float = 1.0
    positions: Positions = "rotary"
    max_positions: int = 0
    """The longest sequence the model was made for; 0 where nothing bounds it. Rows of a ``learned`` table."""
    rope_theta: float = 10_000.0
    rope: RopeSpec = RopeSpec()
    local_rope_theta: float | None = None
    norm: NormKind = "rms"
    norm_eps: float = 1e-5
    norm_plus_one: bool = False
    """Whether norms multiply by one plus their weight (Gemma)."""
    sandwich_norms: bool = False
    """Whether attention and MLP are also normalised on their way out (Gemma 2)."""
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    mlp_gated: bool = True
    activation: Activation = "silu"
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    sliding_window: int | None = None
    local_layers: tuple[int, ...] = ()
    experts: ExpertSpec | None = None

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with routed experts."""
        if self.experts is None:
            return ()
        return tuple(layer for layer in range(self.num_layers) if layer not in self.experts.dense_layers)

    @property
    def mlp_layers(self) -> tuple[int, ...]:
        """Layers with an MLP: all but those with experts."""
        routed = set(self.expert_layers)
        return tuple(layer for layer in range(self.num_layers) if layer not in routed)
