"""Presets and parameter counts, against published figures and the decoder's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpuctl.modelspec import PRESETS, num_parameters


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("tinyllama-1.1b", 1_100_048_384),
        ("smollm2-135m", 134_515_008),
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


@pytest.mark.parametrize("tied", [True, False])
def test_num_parameters_counts_what_the_decoder_holds(tied) -> None:
    import jax

    from tpuctl.nn.params import init_params

    spec = replace(PRESETS["tiny-1m"], vocab_size=384, tied_embedding=tied)
    shapes = jax.eval_shape(lambda key: init_params(spec, key), jax.random.key(0))
    assert num_parameters(spec) == sum(leaf.size for leaf in jax.tree.leaves(shapes))
