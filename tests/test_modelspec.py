"""Presets and parameter counts, against published figures and the decoder's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tpuctl.modelspec import PRESETS, ExpertSpec, num_layer_parameters, num_parameters
from tpuctl.modelspec.layout import parameters


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gemma2-2b", 2_614_341_888),
        ("gemma2-9b", 9_241_705_984),
        ("gemma3-1b", 999_885_952),
        # 4_300_079_472 with what is not the text model: 416_866_032 for images and 2_950_272 between the two.
        ("gemma3-4b", 4_300_079_472 - 416_866_032 - 2_950_272),
        ("gpt2", 124_439_808),
        ("llama2-7b", 6_738_415_616),
        ("llama3-70b", 70_553_706_496),
        ("llama3-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_248_023_552),
        ("mixtral-8x7b", 46_702_792_704),
        ("phi3-mini", 3_821_079_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
    ],
)
def test_num_parameters_of_a_published_model_is_the_published_number(name, published) -> None:
    assert num_parameters(PRESETS[name]) == published


@pytest.mark.parametrize(
    ("name", "vocab_size", "millions"), [("tiny-1m", 384, 1), ("tiny-5m", 2048, 5), ("tiny-64m", 16_384, 64)]
)
def test_num_parameters_of_a_tiny_preset_is_roughly_its_name(name, vocab_size, millions) -> None:
    spec = replace(PRESETS[name], vocab_size=vocab_size)
    assert num_parameters(spec) == pytest.approx(millions * 1e6, rel=0.08)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_share_heads_evenly_and_are_kept_under_their_name(name) -> None:
    spec = PRESETS[name]
    assert spec.name == name
    assert spec.num_heads % spec.num_kv_heads == 0
    assert spec.head_dim % 2 == 0


FEATURES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied_embedding": False},
    "gpt2": {
        "positions": "learned",
        "max_positions": 64,
        "norm": "layer",
        "qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "mlp_gated": False,
    },
    "gated with biases": {"mlp_bias": True},
    "gemma": {"norm_plus_one": True, "sandwich_norms": True, "qk_norm": True},
    "experts": {"experts": ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=16)},
    "experts and MLPs": {"experts": ExpertSpec(num_experts=4, experts_per_token=2, mlp_size=16, dense_layers=(1,))},
}


@pytest.mark.parametrize("features", FEATURES)
def test_parameters_are_those_the_decoder_holds(features) -> None:
    import jax

    from tpuctl.nn.params import init_params

    spec = replace(PRESETS["tiny-1m"], vocab_size=384, num_layers=3, **FEATURES[features])
    shapes = jax.eval_shape(lambda key: init_params(spec, key), jax.random.key(0))
    held = {"/".join(key.key for key in path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    assert {path: parameter.stacked_shape for path, parameter in parameters(spec).items()} == held
    assert num_parameters(spec) == sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_num_layer_parameters_is_that_of_the_largest_layer() -> None:
    mixed = replace(PRESETS["tiny-1m"], **FEATURES["experts and MLPs"])
    whole = replace(mixed, experts=replace(mixed.experts, mlp_size=16 * 1024))
    assert num_layer_parameters(mixed) == num_layer_parameters(replace(mixed, experts=None))
    assert num_layer_parameters(whole) > 4 * 3 * 256 * 16 * 1024
