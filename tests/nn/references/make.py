"""Makes the references: for every family a model of random weights, and its logits as transformers computes them.

    pip install torch==2.13.0 transformers==5.24.0     # an environment of its own; tpuctl needs neither
    python tests/nn/references/make.py                 # writes them all anew; or only those named

A directory for each holds ``config.json`` as transformers 5 writes it, ``config.v4.json`` as most published
checkpoints have it, ``model.safetensors`` (bfloat16) and ``logits.npz``: f32 logits of 128 tokens, computed in f32 from
those very weights. Norms, biases and routers are random too, and sequences longer than windows and original contexts,
so that nothing can be left out unnoticed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

TOKENS = 128
VOCAB = 64
HERE = Path(__file__).parent

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def rope(theta: float, **scaling: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **scaling}


LLAMA3 = rope(
    5e5, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LINEAR = rope(1e4, rope_type="linear", factor=2.0)
GEMMA2_LAYERS = ["sliding_attention", "full_attention"] * 2
GEMMA3_LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": rope(1e4)}),
    "llama_biases": (
        "LlamaConfig",
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "rope_parameters": rope(1e4)},
    ),
    "llama3_rope": ("LlamaConfig", {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_linear_rope": ("LlamaConfig", {"rope_parameters": LINEAR}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 16, "rope_parameters": rope(1e6)}),
    "mistral_sliding": ("MistralConfig", {"sliding_window": 8, "head_dim": 12, "rope_parameters": rope(1e6)}),
    "mixtral": (
        "MixtralConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
            "sliding_window": None,
            "rope_parameters": rope(1e6),
        },
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True, "use_sliding_window": False, "rope_parameters": rope(1e6)}),
    "qwen2_sliding": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "rope_parameters": rope(1e6)},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": rope(1e6)}),
    "qwen3_one_kv_head": ("Qwen3Config", {"head_dim": 8, "num_key_value_heads": 1, "rope_parameters": rope(1e6)}),
    "qwen3_yarn": ("Qwen3Config", {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
            "rope_parameters": rope(1e6),
        },
    ),
    "phi3": ("Phi3Config", {"sliding_window": None, "rope_parameters": rope(1e4, partial_rotary_factor=1.0)}),
    "phi3_sliding": ("Phi3Config", {"sliding_window": 8, "rope_parameters": rope(1e4, partial_rotary_factor=1.0)}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 12,
            "layer_types": GEMMA2_LAYERS,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e4),
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "num_key_value_heads": 1,
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "query_pre_attn_scalar": 12,
            "layer_types": GEMMA3_LAYERS,
            "rope_parameters": {"full_attention": rope(1e6), "sliding_attention": rope(1e4)},
        },
    ),
    "gemma3_linear_rope": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "layer_types": GEMMA3_LAYERS,
            "rope_parameters": {
                "full_attention": rope(1e6, rope_type="linear", factor=8.0),
                "sliding_attention": rope(1e4),
            },
        },
    ),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "n_positions": 160},
    ),
}


@torch.no_grad()
def make(name: str) -> None:
    config_class, chosen = CASES[name]
    sizes = {} if config_class == "GPT2Config" else SIZES
    config = getattr(transformers, config_class)(**{**sizes, **chosen})
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter_name, parameter in model.named_parameters():
        parameter.copy_(random_weight(parameter_name, parameter, config))
    directory = HERE / name
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    written = json.loads((directory / "config.json").read_text())
    (directory / "config.v4.json").write_text(json.dumps(older_spelling(written), indent=2) + "\n")

    tokens = torch.randint(3, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(7))
    logits = logits_of(directory, tokens, config=None)
    older = transformers.AutoConfig.for_model(**json.loads((directory / "config.v4.json").read_text()))
    difference = (logits_of(directory, tokens, config=older) - logits).abs().max().item()
    if difference > 1e-6:
        raise SystemExit(f"{name}: the older spelling of the config gives other logits, by {difference}")
    np.savez(directory / "logits.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name:20} {size / 1000:6.0f} kB, standard deviation of the logits {logits.std():.2f}")


def random_weight(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    plus_one = "gemma" in config.model_type
    drawn = torch.randn_like(weight)
    if "norm" in name or ".ln_" in name:
        centre = 0.1 if name.endswith("bias") else 0.0 if plus_one else 1.0
        return drawn * 0.2 + centre
    if name.endswith("bias"):
        return drawn * 0.1
    if "embed_tokens" in name or "wte" in name:
        return drawn * (0.2 if config.tie_word_embeddings else 0.5)
    return drawn * weight.shape[0 if config.model_type == "gpt2" else -1] ** -0.5


def logits_of(directory: Path, tokens: torch.Tensor, *, config: Any) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()(tokens, use_cache=False).logits


def older_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """The config as transformers 4 wrote it."""
    old = {
        key: value for key, value in config.items() if key not in ("rope_parameters", "dtype", "transformers_version")
    }
    old["torch_dtype"] = config["dtype"]
    if config["model_type"] not in ("mistral", "llama", "phi3"):
        old.pop("layer_types", None)
    turn = config.get("rope_parameters")
    if turn is None:
        return old
    if "full_attention" in turn:
        old["rope_local_base_freq"] = turn["sliding_attention"]["rope_theta"]
        old["sliding_window_pattern"] = 6
        old.pop("_sliding_window_pattern", None)
        turn = turn["full_attention"]
    scaling = {key: value for key, value in turn.items() if key not in ("rope_theta", "partial_rotary_factor")}
    old["rope_theta"] = turn["rope_theta"]
    old["rope_scaling"] = None if turn["rope_type"] == "default" else scaling
    return old


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for case in sys.argv[1:] or CASES:
        make(case)
