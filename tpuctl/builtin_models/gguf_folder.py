"""A GGUF file of the Llama architecture as a model folder in Hugging Face's form, dequantised to float32.

``gguf`` reads the file and knows its quantisations; what comes out is bit for bit what transformers reads of the same
file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from gguf.quants import dequantize
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers.models import BPE

from tpuctl.errors import WeightsError
from tpuctl.model_folder import CONFIG_FILE, GENERATION_FILE, SINGLE_FILE
from tpuctl.safetensors import lay_out

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}


def convert(path: Path, folder: Path) -> None:
    """Write ``folder``: weights, config, tokenizer and chat template. A tensor is in memory only while it is written.

    Raises:
        WeightsError: another architecture or tokenizer, or a tensor that is none of a Llama's.
    """
    reader = gguf.GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    if values["general.architecture"] != "llama" or values["tokenizer.ggml.pre"] != "smollm":
        raise WeightsError(f"{path}: only Llama models with SmolLM's tokenizer are converted")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_name(tensor.name): tensor for tensor in reader.tensors}
    _write_weights(folder / SINGLE_FILE, tensors, values)
    config = _config(values, tied="lm_head.weight" not in tensors)
    _write(folder / CONFIG_FILE, config)
    _write(folder / GENERATION_FILE, {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    _tokenizer(values).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(values))


def _write_weights(path: Path, tensors: dict[str, Any], values: dict[str, Any]) -> None:
    # GGUF names the fastest dimension first.
    shapes = {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in tensors.items()}
    laid_out = lay_out(str(path), {name: ("F32", shape) for name, shape in shapes.items()})
    with path.open("wb") as file:
        file.write(laid_out.header)
        for tensor in tensors.values():
            file.write(_weight(tensor, values).tobytes())


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found is None or found[2] not in _INSIDE:
        raise WeightsError(f"unknown tensor {name}")
    return f"model.layers.{found[1]}.{_INSIDE[found[2]]}.weight"


def _weight(tensor: Any, values: dict[str, Any]) -> np.ndarray:
    weight: np.ndarray = dequantize(tensor.data, tensor.tensor_type).astype("<f4")
    heads = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
    for part, key in heads.items():
        if f".{part}." in tensor.name:
            weight = _halves(weight, values[f"llama.{key}"])
    return weight


def _halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pairs, as llama.cpp rotates them, to halves."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _config(values: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    def of(key: str) -> Any:
        return values[f"llama.{key}"]

    heads = of("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("embedding_length") // heads,
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": of("rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(values: dict[str, Any]) -> tokenizers.Tokenizer:
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    made.decoder = decoders.ByteLevel()
    of_kind = {kind: [token for token, its in zip(tokens, kinds, strict=True) if its == kind] for kind in set(kinds)}
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in of_kind[_CONTROL]])
    made.add_tokens([AddedToken(token, normalized=False) for token in of_kind.get(_USER_DEFINED, [])])
    return made


def _tokenizer_config(values: dict[str, Any]) -> dict[str, Any]:
    tokens = values["tokenizer.ggml.tokens"]
    ids = {name: values.get(f"tokenizer.ggml.{key}_token_id") for key, name in _SPECIAL.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": values["tokenizer.chat_template"],
        **{name: tokens[number] for name, number in ids.items() if number is not None},
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
