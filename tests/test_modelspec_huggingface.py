"""Configs of Hugging Face: what they say, what they leave out, and what must not be passed over."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tpuctl.modelspec import PRESETS, RopeSpec
from tpuctl.modelspec.config import ModelConfigError
from tpuctl.modelspec.huggingface import config_from_spec, read_config, spec_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

# As their authors published them, but for ids, dtypes and the like.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama3.2-1b": {
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gemma2-2b": {
        "model_type": "gemma2",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "gemma3-4b": {
        "model_type": "gemma3",
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    },
    "phi3-mini": {
        "model_type": "phi3",
        "attention_bias": False,
        "embd_pdrop": 0.0,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "gpt2": {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_spec_from_a_published_config_is_the_preset_of_that_name(name) -> None:
    assert spec_from_config(PUBLISHED[name], name=name) == PRESETS[name]


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("tiny")])
def test_config_from_a_preset_reads_back_as_the_preset(name) -> None:
    config = json.loads(json.dumps(config_from_spec(PRESETS[name])))
    assert spec_from_config(config, name=name) == PRESETS[name]


def test_config_from_a_spec_that_no_family_computes_says_in_what_the_nearest_differs() -> None:
    spec = dataclasses.replace(PRESETS["gemma2-2b"], attention_out_bias=True)
    with pytest.raises(ModelConfigError, match="the nearest has another attention_out_bias"):
        config_from_spec(spec)


def test_sizes_a_config_leaves_out_are_those_of_transformers() -> None:
    spec = spec_from_config(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.rope_theta, spec.tied_embedding) == (4, 16, 10_000.0, False)
    assert spec_from_config({**LLAMA, "head_dim": 32}).head_dim == 32
    assert spec_from_config({**LLAMA, "head_dim": None}).head_dim == 16
    assert spec_from_config({**LLAMA, "model_type": "qwen3"}).head_dim == 128


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}},
        },
    ],
)
def test_rope_scaling_is_read_in_every_spelling(spelling) -> None:
    spec = spec_from_config({**LLAMA, **spelling})
    expected = RopeSpec(
        scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=32
    )
    assert (spec.rope_theta, spec.rope) == (5e5, expected)
    assert spec_from_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}).rope.factor == 2.0


def test_yarn_without_an_attention_factor_takes_that_of_the_paper() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert spec_from_config({**LLAMA, "rope_scaling": yarn}).rope.attention_factor == pytest.approx(1.1386294)
    stretched = {**yarn, "mscale": 1.0, "mscale_all_dim": 0.707}
    assert spec_from_config({**LLAMA, "rope_scaling": stretched}).rope.attention_factor == pytest.approx(1.0369928)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not a family"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": None}, "does not say 'hidden_size'"),
        ({"num_key_value_heads": 3}, "4 query heads can't share 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "relu2"}, "hidden_act = 'relu2'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}}, "'su' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' without factor"),
        ({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}}, "without low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "extra": 1}}, "with extra is not supported"),
        ({"rope_scaling": LLAMA3, "rope_parameters": LLAMA3}, "both rope_parameters and rope_scaling"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"logit_scale": 0.5}, "'logit_scale'"),
        ({"residual_multiplier": 0.2, "embedding_multiplier": 12}, "'embedding_multiplier', 'residual_multiplier'"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 4}, "'linear_attention'"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"] * 3}, "3 layers for a model of 4"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
    ids=str,
)
def test_a_config_that_is_not_wholly_understood_is_refused_by_name(changes, message) -> None:
    with pytest.raises(ModelConfigError) as caught:
        spec_from_config({**LLAMA, **changes})
    assert message in caught.value.message


def test_gpt2_with_scores_scaled_otherwise_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="scale_attn_by_inverse_layer_idx"):
        spec_from_config({**PUBLISHED["gpt2"], "scale_attn_by_inverse_layer_idx": True})


def test_read_config_of_something_else_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelConfigError, match=r"config\.json: not a JSON object"):
        read_config(tmp_path / "config.json")
