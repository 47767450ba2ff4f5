"""A tiny model folder in Hugging Face's form, with weights drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.tensor_files import write_tensors
from tpuctl.modelspec import ModelSpec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


SPEC = ModelSpec(
    name="tiny",
    vocab_size=320,
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_size=48,
    max_positions=256,
)
"""The spec of ``CONFIG``."""


def llama_tensors(config: dict[str, Any] = CONFIG, *, dtype: Any = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of a Llama model by their names on the hub."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    inside = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    random = np.random.default_rng(seed)
    return {name: (random.normal(size=shape) * 0.1).astype(dtype) for name, shape in shapes.items()}


def write_model(folder: Path, *, config: dict[str, Any] = CONFIG, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """The folder: ``config.json`` and one file of weights, which are returned."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = llama_tensors(config, dtype=dtype)
    write_tensors(folder / "model.safetensors", tensors)
    return tensors
