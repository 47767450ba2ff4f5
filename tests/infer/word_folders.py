"""Model folders whose tokens are words, so that a text of them says which ids it has."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers


def write_words(folder: Path, count: int, *, end: int | list[int] = 2) -> None:
    """A tokenizer with the words ``w0``, ``w1``, …, and a model's files that say which ids end a text."""
    words = {f"w{n}": n for n in range(count)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
