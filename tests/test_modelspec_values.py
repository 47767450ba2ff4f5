"""Wrong values in a config: whatever stands there, it is refused by its key or makes a model that can be counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.test_modelspec_huggingface import LLAMA, LLAMA3, PUBLISHED
from tpuctl.modelspec import num_parameters
from tpuctl.modelspec.config import ModelConfigError
from tpuctl.modelspec.huggingface import spec_from_config

WRONG = [
    *("576", "", "linear", [], [1], {}, {"a": 1}, [{}], {"factor": "2"}, {"rope_type": "yarn"}, {"rope_type": {}}),
    *(True, False, 0, -1, -576, 0.5, 576.0, 10**12, 10**400, 1e300, float("inf"), float("nan")),
]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "truncate": True}
LAYERED = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}
ALWAYS_MEANT = {
    "attention_bias": False,
    "hidden_act": "silu",
    "head_dim": 16,
    "layer_types": ["full_attention"] * 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 1e4},
    "tie_word_embeddings": True,
}
CONFIGS = {
    **PUBLISHED,
    "llama": LLAMA | ALWAYS_MEANT,
    "llama3": LLAMA | {"rope_scaling": LLAMA3},
    "yarn": LLAMA | {"rope_scaling": YARN},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": LLAMA
    | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    | {"decoder_sparse_step": 1, "mlp_only_layers": [1], "norm_topk_prob": True, "use_sliding_window": True},
    "gemma3": LLAMA | {"model_type": "gemma3_text", "rope_parameters": LAYERED, "sliding_window_pattern": 2},
    "nested": {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}},
    "gpt2": {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
}
SIZES = {
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts"),
    *("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim", "n_embd", "n_head", "n_layer"),
    *("n_positions", "num_experts_per_tok", "original_max_position_embeddings"),
}


def mutations(config: dict[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """Every key, those of inner objects too, with every wrong value: the key, the value and the whole config."""
    found = []
    for key, value in config.items():
        if key == "vision_config":  # not read
            continue
        found += [(key, wrong, config | {key: wrong}) for wrong in WRONG]
        if isinstance(value, dict):
            found += [(inner, wrong, config | {key: changed}) for inner, wrong, changed in mutations(value)]
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_wrong_value_is_refused_or_makes_a_model(name: str) -> None:
    assert num_parameters(spec_from_config(CONFIGS[name])) > 0
    for key, wrong, config in mutations(CONFIGS[name]):
        try:
            spec = spec_from_config(config)
        except ModelConfigError:
            continue
        assert num_parameters(spec) > 0, (key, wrong)
        json.dumps(spec.rope_theta, allow_nan=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_size_of_another_type_or_below_one_is_refused_by_its_key(name: str) -> None:
    for key, wrong, config in mutations(CONFIGS[name]):
        if key in SIZES and not (isinstance(wrong, int) and not isinstance(wrong, bool) and wrong >= 1):
            with pytest.raises(ModelConfigError, match=key):
                spec_from_config(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "576"}, "hidden_size = '576'"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear'"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"num_attention_heads": 65}, "num_attention_heads = 65"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'"),
        ({"rope_theta": float("inf")}, "rope_theta = inf"),
    ],
)
def test_wrong_value_is_shown_beside_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        spec_from_config(LLAMA | change)
