"""Training a byte-level BPE."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from tpuctl.text.special import SEPARATOR

__all__ = ["SEPARATOR", "tokenizer_config", "train_bpe"]


def train_bpe(texts: Iterable[str], *, vocab_size: int, path: Path) -> None:
    """Train a byte-level BPE on ``texts`` and save it whole or not at all.

    The same texts in the same order give the same file. Short texts may give fewer than ``vocab_size`` ids.
    """
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(backend.to_str(pretty=True), encoding="utf-8")
    os.replace(partial, path)


def tokenizer_config() -> str:
    """The ``tokenizer_config.json`` that goes beside such a tokenizer, for transformers and others."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SEPARATOR,
        "clean_up_tokenization_spaces": False,
    }
    return json.dumps(config, indent=2) + "\n"
