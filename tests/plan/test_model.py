"""Presets, own sizes, and the vocabulary that goes with a tokenizer."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError

OWN = ["model.preset=none", "model.hidden_size=64", "model.num_layers=2", "model.num_heads=4", "model.mlp_size=128"]


@pytest.mark.parametrize(
    ("overrides", "vocab"),
    [
        ([], 384),
        (["data.tokenizer=bpe:2048"], 2048),
        (["data.tokenizer=bpe:1000"], 1024),
        (["model.vocab_size=300", "mesh.tensor=1"], 300),
        (["model.preset=llama3-8b", "slice.topology=4x4", "train.global_batch=16"], 128_256),
        (["data.tokenizer=tok/tokenizer.json", "model.vocab_size=1000"], 1000),
    ],
)
def test_plan_model_takes_the_vocabulary_of_the_tokenizer_unless_given(make_plan, overrides, vocab) -> None:
    assert make_plan(*overrides).model.vocab_size == vocab


def test_plan_model_of_own_sizes_fills_in_heads_and_constants(make_plan) -> None:
    model = make_plan(*OWN).model
    assert (model.name, model.num_kv_heads, model.head_dim) == ("custom", 4, 16)
    assert (model.rope_theta, model.norm_eps, model.tied_embedding) == (10_000.0, 1e-5, True)


def test_plan_model_of_a_changed_preset_is_no_longer_called_by_its_name(make_plan) -> None:
    assert make_plan("model.num_layers=5").model.name == "custom"
    assert make_plan("model.num_layers=2").model.name == "tiny-1m"
    assert make_plan("model.tied_embedding=false").model.tied_embedding is False
    assert make_plan("model.dropout=0.1").train.dropout == 0.1


@pytest.mark.parametrize(
    ("overrides", "key", "message", "hint"),
    [
        (["model.preset=tiny5m"], "model.preset", "unknown preset", "tiny-5m"),
        (["model.preset=mamba-130m"], "model.preset", "unknown preset", "presets: tiny-1m"),
        (["model.preset=none"], "model.preset", "no preset", "hidden_size and num_layers and num_heads and mlp_size"),
        ([*OWN, "model.mlp_size=unset"], "model.preset", "no preset", "or mlp_size"),
        ([*OWN, "model.num_heads=5"], "model.num_heads", "64 does not divide into 5", "head_dim"),
        ([*OWN, "model.num_kv_heads=3"], "model.num_kv_heads", "4 query heads", "divisor"),
        ([*OWN, "model.head_dim=15"], "model.head_dim", "odd", "even"),
        (["model.vocab_size=256"], "model.vocab_size", "too few for the 257 ids", "at least 257"),
        (["data.tokenizer=./tok"], "model.vocab_size", "no tokenizer.json to read at ./tok", "number of ids"),
    ],
)
def test_plan_model_that_can_not_be_says_which_size(make_plan, overrides, key, message, hint) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(*overrides)
    assert caught.value.where is not None
    assert caught.value.where.key == key
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_plan_model_of_a_preset_made_shallower_has_no_layer_that_is_not_there(make_plan) -> None:
    large = ["slice.topology=4x4", "train.global_batch=16"]
    model = make_plan("model.preset=gemma3-1b", "model.num_layers=7", *large).model
    assert model.local_layers == (0, 1, 2, 3, 4, 6)


def test_plan_model_with_learned_positions_refuses_longer_sequences(make_plan) -> None:
    assert make_plan("model.preset=gpt2", "train.sequence_length=1024").model.max_positions == 1024
    with pytest.raises(RecipeError, match="1025 tokens are more than the 1024 positions"):
        make_plan("model.preset=gpt2", "train.sequence_length=1025")
