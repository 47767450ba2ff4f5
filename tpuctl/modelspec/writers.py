"""A spec in the words of each family's config. What a family can't say is left out: the reader then shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.modelspec.readers import ACTIVATIONS
from tpuctl.modelspec.rope import rope_scaling
from tpuctl.modelspec.spec import ModelSpec

type Written = dict[str, Any]

_ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}


def _sizes(spec: ModelSpec) -> Written:
    bound = {"max_position_embeddings": spec.max_positions} if spec.max_positions else {}
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.mlp_size,
        **bound,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embedding,
        "rope_theta": spec.rope_theta,
        "rope_scaling": rope_scaling(spec.rope),
    }


def _with_silu(spec: ModelSpec) -> Written:
    return {**_sizes(spec), "hidden_act": _ACTIVATION_NAMES[spec.activation]}


def _llama(spec: ModelSpec) -> Written:
    return {**_with_silu(spec), "attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}


def _mistral(spec: ModelSpec) -> Written:
    return {**_with_silu(spec), "sliding_window": spec.sliding_window}


def _mixtral(spec: ModelSpec) -> Written:
    experts = spec.experts
    if experts is None:
        return _mistral(spec)
    counts = {"num_local_experts": experts.num_experts, "num_experts_per_tok": experts.experts_per_token}
    return {**_mistral(spec), "intermediate_size": experts.mlp_size, **counts}


def _windows(spec: ModelSpec) -> Written:
    if spec.sliding_window is None:
        return {"use_sliding_window": False}
    kinds = ["sliding_attention" if i in spec.local_layers else "full_attention" for i in range(spec.num_layers)]
    return {"use_sliding_window": True, "sliding_window": spec.sliding_window, "layer_types": kinds}


def _qwen2(spec: ModelSpec) -> Written:
    return {**_with_silu(spec), **_windows(spec)}


def _qwen3(spec: ModelSpec) -> Written:
    return {**_with_silu(spec), **_windows(spec), "attention_bias": spec.qkv_bias}


def _qwen3_moe(spec: ModelSpec) -> Written:
    experts = spec.experts
    if experts is None:
        return _qwen3(spec)
    window = {"use_sliding_window": spec.sliding_window is not None, "sliding_window": spec.sliding_window}
    return {
        **_with_silu(spec),
        **window,
        "attention_bias": spec.qkv_bias,
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.mlp_size,
        "norm_topk_prob": experts.renormalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(experts.dense_layers),
    }


def _gemma(spec: ModelSpec) -> Written:
    scalar = spec.head_dim if spec.attention_scale is None else spec.attention_scale**-2
    return {
        **_sizes(spec),
        **{key: value for key, value in _windows(spec).items() if key != "use_sliding_window"},
        "sliding_window": spec.sliding_window,
        "hidden_activation": _ACTIVATION_NAMES[spec.activation],
        "attention_bias": spec.qkv_bias,
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar,
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logits_softcap,
    }


def _gemma3(spec: ModelSpec) -> Written:
    return {**_gemma(spec), "rope_local_base_freq": spec.local_rope_theta}


def _gpt2(spec: ModelSpec) -> Written:
    return {
        "vocab_size": spec.vocab_size,
        "n_embd": spec.hidden_size,
        "n_layer": spec.num_layers,
        "n_head": spec.num_heads,
        "n_inner": spec.mlp_size,
        "n_positions": spec.max_positions or None,
        "tie_word_embeddings": spec.tied_embedding,
        "layer_norm_epsilon": spec.norm_eps,
        "activation_function": _ACTIVATION_NAMES[spec.activation],
    }


# The plainest first: config_from_spec takes the first that says all of a spec.
WRITERS: dict[str, tuple[str, Callable[[ModelSpec], Written]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "mistral": ("MistralForCausalLM", _mistral),
    "qwen2": ("Qwen2ForCausalLM", _qwen2),
    "qwen3": ("Qwen3ForCausalLM", _qwen3),
    "mixtral": ("MixtralForCausalLM", _mixtral),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _qwen3_moe),
    "gemma2": ("Gemma2ForCausalLM", _gemma),
    "gemma3_text": ("Gemma3ForCausalLM", _gemma3),
    "gpt2": ("GPT2LMHeadModel", _gpt2),
}
