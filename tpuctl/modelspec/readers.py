"""What each family's config says of a model, in the fields of a ``ModelSpec``.

A reader takes every key of its family that changes what is computed. Defaults are those of transformers, since files
leave out what equals them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.modelspec.config import Config, ModelConfigError
from tpuctl.modelspec.rope import take_layered_rope, take_rope
from tpuctl.modelspec.spec import Activation, ExpertSpec
from tpuctl.modelspec.values import shown

type Fields = dict[str, Any]

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
# A layer or an expert costs memory already where it is only named; this is many times what any model has.
_MOST_COUNTED = 10_000

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

DEFAULTS: dict[str, Fields] = {
    # The files of Gemma 3 for text and images leave out even sizes.
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    }
}


def _sizes(config: Config, *, tied: bool = False, eps: float = 1e-6, head_dim: int | None = None) -> Fields:
    """What all families but GPT-2 spell alike; the rest are the family's defaults, since files leave them out."""
    hidden, heads = config.take_size("hidden_size"), config.take_size("num_attention_heads")
    return {
        "vocab_size": config.take_size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": config.take_size("num_hidden_layers", most=_MOST_COUNTED),
        "num_heads": heads,
        "num_kv_heads": config.take_size("num_key_value_heads", heads),
        "head_dim": config.take_size("head_dim", head_dim) or _share("num_attention_heads", hidden, heads),
        "mlp_size": config.take_size("intermediate_size"),
        "max_positions": config.take_size("max_position_embeddings", 0, least=0),
        "norm_eps": config.take_number("rms_norm_eps", eps),
        "tied_embedding": config.take_flag("tie_word_embeddings", tied),
    }


def _share(key: str, hidden: int, heads: int) -> int:
    """Width of a head where the config leaves it out."""
    if heads > hidden:
        raise ModelConfigError(f"{key} = {heads} in the model's config: more than the {hidden} of its width")
    return hidden // heads


def _activation(config: Config, key: str, default: str) -> Fields:
    name = config.take_word(key, default)
    if name not in ACTIVATIONS:
        raise ModelConfigError(f"{key} = {shown(name)} in the model's config: known are {', '.join(ACTIVATIONS)}")
    return {"activation": ACTIVATIONS[name]}


def _biases(config: Config) -> Fields:
    has = config.take_flag("attention_bias", False)
    return {"qkv_bias": has, "attention_out_bias": has}


def _windows(config: Config, layers: int, *, window: int | None, local: Callable[[int], bool]) -> Fields:
    """The local layers: as ``layer_types`` says, else those of which ``local`` says so."""
    types = config.take_words("layer_types") or [_LOCAL if local(i) else _GLOBAL for i in range(layers)]
    if len(types) != layers:
        raise ModelConfigError(f"layer_types of {len(types)} layers for a model of {layers}")
    if unknown := sorted(set(types) - {_LOCAL, _GLOBAL}):
        raise ModelConfigError(f"layer_types: {', '.join(map(repr, unknown))} is not supported")
    chosen = tuple(i for i, kind in enumerate(types) if kind == _LOCAL)
    if not chosen or window is None:
        return {}
    return {"sliding_window": window, "local_layers": chosen}


def _window_everywhere(config: Config, layers: int, default: int | None) -> Fields:
    window = config.take_explicit_size("sliding_window", default)
    return _windows(config, layers, window=window, local=lambda _: True)


def _window_from_a_layer_on(config: Config, layers: int) -> Fields:
    used, window = config.take_flag("use_sliding_window", False), config.take_explicit_size("sliding_window", 4096)
    first = config.take_size("max_window_layers", 28, least=0)
    return _windows(config, layers, window=window if used else None, local=lambda layer: layer >= first)


def _llama(config: Config) -> Fields:
    sizes = _sizes(config)
    types = config.take_words("layer_types")
    if types and set(types) != {_GLOBAL}:
        raise ModelConfigError("layer_types: this family has no local layers")
    mlp_bias = {"mlp_bias": config.take_flag("mlp_bias", False)}
    return {**sizes, **take_rope(config), **_biases(config), **mlp_bias, **_activation(config, "hidden_act", "silu")}


def _mistral(config: Config) -> Fields:
    sizes = _sizes(config)
    window = _window_everywhere(config, sizes["num_layers"], 4096)
    return {**sizes, **take_rope(config), **window, **_activation(config, "hidden_act", "silu")}


def _num_experts(config: Config, *spellings: str) -> int:
    """How many there are, by the first of the key's spellings that is there."""
    found = [config.take_size(key, None, most=_MOST_COUNTED) for key in spellings]
    count: int | None = next(filter(None, found), None)
    if count is None:
        raise ModelConfigError(f"the model's config does not say {spellings[-1]!r}")
    return count


def _mixtral(config: Config) -> Fields:
    sizes = _sizes(config, eps=1e-5)
    experts = ExpertSpec(
        num_experts=_num_experts(config, "num_experts", "num_local_experts"),
        experts_per_token=config.take_size("num_experts_per_tok"),
        mlp_size=sizes["mlp_size"],
    )
    window = _window_everywhere(config, sizes["num_layers"], None)
    rope = take_rope(config, default_theta=1e6)
    return {**sizes, **rope, **window, "experts": experts, **_activation(config, "hidden_act", "silu")}


def _phi3(config: Config) -> Fields:
    sizes = _sizes(config, eps=1e-5)
    config.take_size("original_max_position_embeddings", None)  # of longrope alone, which is refused
    window = _window_everywhere(config, sizes["num_layers"], None)
    return {**sizes, **take_rope(config), **window, **_activation(config, "hidden_act", "silu")}


def _qwen2(config: Config) -> Fields:
    sizes = _sizes(config)
    window = _window_from_a_layer_on(config, sizes["num_layers"])
    return {**sizes, **take_rope(config), **window, "qkv_bias": True, **_activation(config, "hidden_act", "silu")}


def _qwen3(config: Config) -> Fields:
    sizes = _sizes(config, head_dim=128)
    window = _window_from_a_layer_on(config, sizes["num_layers"])
    rest = {"qk_norm": True, **_biases(config), **_activation(config, "hidden_act", "silu")}
    return {**sizes, **take_rope(config), **window, **rest}


def _qwen3_moe(config: Config) -> Fields:
    sizes = _sizes(config)
    layers = sizes["num_layers"]
    config.take("max_window_layers", None)  # of other Qwen families; here a window holds for all layers
    used, window = config.take_flag("use_sliding_window", False), config.take_explicit_size("sliding_window", 4096)
    windows = _windows(config, layers, window=window if used else None, local=lambda _: True)
    step, dense = config.take_size("decoder_sparse_step", 1), set(config.take_sizes("mlp_only_layers"))
    experts = ExpertSpec(
        num_experts=_num_experts(config, "num_local_experts", "num_experts"),
        experts_per_token=config.take_size("num_experts_per_tok"),
        mlp_size=config.take_size("moe_intermediate_size"),
        renormalise=config.take_flag("norm_topk_prob", False),
        dense_layers=tuple(layer for layer in range(layers) if layer in dense or (layer + 1) % step),
    )
    rest = {"qk_norm": True, "experts": experts, **_biases(config), **_activation(config, "hidden_act", "silu")}
    return {**sizes, **take_rope(config), **windows, **rest}


def _gemma(config: Config, *, softcaps: tuple[float | None, float | None]) -> Fields:
    """What Gemma 2 and 3 share, but for sizes and rotary embedding."""
    config.take("hidden_act", None)  # in the files of Gemma 2, without effect
    config.require("use_bidirectional_attention", False, why="only causal attention is supported")
    return {
        **_biases(config),
        **_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "norm_plus_one": True,
        "sandwich_norms": True,
        "embedding_scale": float(config.take_size("hidden_size")) ** 0.5,
        "attention_scale": float(config.take_number("query_pre_attn_scalar", 256)) ** -0.5,
        "attention_softcap": config.take_explicit_number("attn_logit_softcapping", softcaps[0]),
        "logits_softcap": config.take_explicit_number("final_logit_softcapping", softcaps[1]),
    }


def _gemma2(config: Config) -> Fields:
    sizes = _sizes(config, tied=True, head_dim=256)
    window = config.take_explicit_size("sliding_window", 4096)
    windows = _windows(config, sizes["num_layers"], window=window, local=lambda layer: layer % 2 == 0)
    return {**sizes, **take_rope(config), **windows, **_gemma(config, softcaps=(50.0, 30.0))}


def _gemma3(config: Config) -> Fields:
    sizes = _sizes(config, tied=True, head_dim=256)
    config.take("_sliding_window_pattern", None)  # written beside layer_types, which rule
    every = config.take_size("sliding_window_pattern", 6)
    window = config.take_explicit_size("sliding_window", 4096)
    windows = _windows(config, sizes["num_layers"], window=window, local=lambda layer: (layer + 1) % every != 0)
    rope = take_layered_rope(config, default_theta=1e6, default_local_theta=1e4)
    return {**sizes, **rope, **windows, **_gemma(config, softcaps=(None, None)), "qk_norm": True}


def _gpt2(config: Config) -> Fields:
    hidden, heads = config.take_size("n_embd"), config.take_size("n_head")
    config.require("scale_attn_weights", True, why="unscaled scores are not supported")
    config.require("scale_attn_by_inverse_layer_idx", False, why="a scale for each layer is not supported")
    config.require("add_cross_attention", False, why="cross attention is not supported")
    return {
        "vocab_size": config.take_size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": config.take_size("n_layer", most=_MOST_COUNTED),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _share("n_head", hidden, heads),
        "mlp_size": config.take_size("n_inner", 4 * hidden),
        "tied_embedding": config.take_flag("tie_word_embeddings", True),
        "positions": "learned",
        "max_positions": config.take_size("n_positions"),
        "norm": "layer",
        "norm_eps": config.take_number("layer_norm_epsilon", 1e-5),
        "qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "mlp_gated": False,
        **_activation(config, "activation_function", "gelu_new"),
    }


READERS: dict[str, Callable[[Config], Fields]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "phi3": _phi3,
}
