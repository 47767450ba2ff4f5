"""Architectures known by name: sizes as published, and tiny ones of our own for trying things out on a CPU."""

from __future__ import annotations

from typing import Any

from tpuctl.modelspec.spec import ExpertSpec, ModelSpec, RopeSpec

_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_size")


def _spec(name: str, *sizes: int, **rest: Any) -> ModelSpec:
    named: dict[str, Any] = dict(zip(_SIZES, sizes, strict=True))
    return ModelSpec(name=name, **named, **rest)


_UNTIED: dict[str, Any] = {"tied_embedding": False}
_LLAMA3: dict[str, Any] = {"rope_theta": 500_000.0, "max_positions": 8192}
_QWEN: dict[str, Any] = {"rope_theta": 1_000_000.0, "norm_eps": 1e-6}
_QWEN2: dict[str, Any] = _QWEN | {"qkv_bias": True}
_QWEN3: dict[str, Any] = _QWEN | {"qk_norm": True, "max_positions": 40_960}


def _llama31(factor: float) -> dict[str, Any]:
    return _LLAMA3 | {"rope": RopeSpec(scaling="llama3", factor=factor), "max_positions": 131_072}


def _gemma(hidden: int, local_layers: tuple[int, ...], window: int) -> dict[str, Any]:
    return {
        "embedding_scale": hidden**0.5,
        "norm_eps": 1e-6,
        "norm_plus_one": True,
        "sandwich_norms": True,
        "activation": "gelu_tanh",
        "attention_scale": 256**-0.5,
        "sliding_window": window,
        "local_layers": local_layers,
    }


def _gemma2(hidden: int, layers: int) -> dict[str, Any]:
    capped = {"attention_softcap": 50.0, "logits_softcap": 30.0, "max_positions": 8192}
    return _gemma(hidden, tuple(range(0, layers, 2)), 4096) | capped


def _gemma3(hidden: int, layers: int, window: int) -> dict[str, Any]:
    local = tuple(layer for layer in range(layers) if (layer + 1) % 6)
    bases = {"rope_theta": 1_000_000.0, "local_rope_theta": 10_000.0, "qk_norm": True}
    return _gemma(hidden, local, window) | bases


_GPT2: dict[str, Any] = {
    "positions": "learned",
    "norm": "layer",
    "qkv_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "mlp_gated": False,
    "activation": "gelu_tanh",
}

_SPECS = (
    # For trying things out on a CPU; vocab_size 0 takes the tokenizer's, and the names count with theirs.
    _spec("tiny-1m", 0, 256, 2, 4, 2, 64, 352),
    _spec("tiny-5m", 0, 256, 6, 4, 2, 64, 768),
    _spec("tiny-64m", 0, 768, 8, 12, 4, 64, 2048),
    # Published: vocabulary, width, layers, heads, key heads, head size, MLP.
    _spec("smollm2-135m", 49_152, 576, 30, 9, 3, 64, 1536, rope_theta=100_000.0, max_positions=8192),
    _spec("tinyllama-1.1b", 32_000, 2048, 22, 32, 4, 64, 5632, max_positions=2048, **_UNTIED),
    _spec("gpt2", 50_257, 768, 12, 12, 12, 64, 3072, max_positions=1024, **_GPT2),
    _spec("llama2-7b", 32_000, 4096, 32, 32, 32, 128, 11_008, max_positions=4096, **_UNTIED),
    _spec("llama3-8b", 128_256, 4096, 32, 32, 8, 128, 14_336, **_LLAMA3, **_UNTIED),
    _spec("llama3-70b", 128_256, 8192, 80, 64, 8, 128, 28_672, **_LLAMA3, **_UNTIED),
    _spec("llama3.1-8b", 128_256, 4096, 32, 32, 8, 128, 14_336, **_llama31(8.0), **_UNTIED),
    _spec("llama3.1-70b", 128_256, 8192, 80, 64, 8, 128, 28_672, **_llama31(8.0), **_UNTIED),
    _spec("llama3.2-1b", 128_256, 2048, 16, 32, 8, 64, 8192, **_llama31(32.0)),
    _spec("llama3.2-3b", 128_256, 3072, 28, 24, 8, 128, 8192, **_llama31(32.0)),
    # Version 0.3: without a window.
    _spec("mistral-7b", 32_768, 4096, 32, 32, 8, 128, 14_336, rope_theta=1e6, max_positions=32_768, **_UNTIED),
    _spec(
        "mixtral-8x7b",
        *(32_000, 4096, 32, 32, 8, 128, 14_336),
        rope_theta=1e6,
        max_positions=32_768,
        experts=ExpertSpec(num_experts=8, experts_per_token=2, mlp_size=14_336),
        **_UNTIED,
    ),
    # The window of 2047 is in its config and holds for all layers.
    _spec(
        "phi3-mini",
        *(32_064, 3072, 32, 32, 32, 96, 8192),
        max_positions=4096,
        sliding_window=2047,
        local_layers=tuple(range(32)),
        **_UNTIED,
    ),
    _spec("qwen2.5-0.5b", 151_936, 896, 24, 14, 2, 64, 4864, max_positions=32_768, **_QWEN2),
    _spec("qwen2.5-7b", 152_064, 3584, 28, 28, 4, 128, 18_944, max_positions=131_072, **_QWEN2, **_UNTIED),
    _spec("qwen3-0.6b", 151_936, 1024, 28, 16, 8, 128, 3072, **_QWEN3),
    _spec("qwen3-4b", 151_936, 2560, 36, 32, 8, 128, 9728, **_QWEN3),
    _spec("qwen3-8b", 151_936, 4096, 36, 32, 8, 128, 12_288, **_QWEN3, **_UNTIED),
    _spec(
        "qwen3-30b-a3b",
        *(151_936, 2048, 48, 32, 4, 128, 6144),
        experts=ExpertSpec(num_experts=128, experts_per_token=8, mlp_size=768),
        **_QWEN3,
        **_UNTIED,
    ),
    _spec("gemma2-2b", 256_000, 2304, 26, 8, 4, 256, 9216, **_gemma2(2304, 26)),
    _spec("gemma2-9b", 256_000, 3584, 42, 16, 8, 256, 14_336, **_gemma2(3584, 42)),
    # The text model alone.
    _spec("gemma3-1b", 262_144, 1152, 26, 4, 1, 256, 6912, max_positions=32_768, **_gemma3(1152, 26, 512)),
    _spec(
        "gemma3-4b",
        *(262_208, 2560, 34, 8, 4, 256, 10_240),
        max_positions=131_072,
        rope=RopeSpec(scaling="linear", factor=8.0),
        **_gemma3(2560, 34, 1024),
    ),
)

PRESETS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
