"""What a tokenizer's name means: ``bytes``, ``bpe:N``, a built-in model's, or where its file lies; and how many ids it
has, if known."""

from __future__ import annotations

import json
from pathlib import Path

from tpuctl.builtin_models import BUILTIN_DECODERS
from tpuctl.modelspec import PRESETS
from tpuctl.recipe.origin import Findings

# All 256 bytes and the document separator: what every tokenizer of ours has at least.
SMALLEST_VOCABULARY = 257
_LARGEST_BPE = 1_000_000


def check_tokenizer(name: str, *, findings: Findings) -> None:
    """Refuse a name that means nothing."""
    if tokenizer_ids(name) is not None or is_tokenizer_file(name):
        return
    if name.startswith("bpe:"):
        hint = f"write e.g. 'bpe:8192'; N is from {SMALLEST_VOCABULARY} (all bytes and a separator) to {_LARGEST_BPE}"
        findings.refuse("data.tokenizer", f"expected bpe:N, got {name!r}", hint)
    elif name.startswith("builtin:"):
        findings.refuse("data.tokenizer", f"unknown tokenizer {name!r}", f"there is {', '.join(BUILTIN_DECODERS)}")
    else:
        hint = "'bytes', 'bpe:N' or the path or gs:// URI of a tokenizer.json, a tokenizer.model or a folder with one"
        findings.refuse("data.tokenizer", f"unknown tokenizer {name!r}", hint)


def tokenizer_ids(name: str) -> int | None:
    """How many ids the tokenizer has, if its name tells: all but those in files do."""
    if name in BUILTIN_DECODERS:
        return PRESETS[BUILTIN_DECODERS[name]].vocab_size
    if name == "bytes":
        return SMALLEST_VOCABULARY
    kind, _, size = name.partition(":")
    if kind != "bpe" or not (size.isascii() and size.isdigit()):
        return None
    return int(size) if SMALLEST_VOCABULARY <= int(size) <= _LARGEST_BPE else None


def has_chat_template(name: str) -> bool:
    """Whether there may be a chat template beside the tokenizer: in a folder, or in a built-in model."""
    return name in BUILTIN_DECODERS or is_tokenizer_file(name)


def is_tokenizer_file(name: str) -> bool:
    """Whether the name is a path or in a bucket: a file of a known kind, or anything that can't be a plain word."""
    if "://" in name:
        return name.startswith("gs://")
    return name.endswith((".json", ".model")) or "/" in name or name.startswith((".", "~"))


def file_ids(path: Path) -> int | None:
    """How many ids a ``tokenizer.json`` (or the one in a folder) has: one more than the largest.

    None where there is none to read here: the path may be one of the cluster's alone.

    Raises:
        ValueError: the file is no tokenizer.json.
    """
    file = path if path.suffix == ".json" else path / "tokenizer.json"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    found = json.loads(text)
    try:
        vocabulary = found["model"]["vocab"]
        # Unigram models list pieces with scores, all others map tokens to ids.
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
        return 1 + max(int(number) for number in [*ids, *(token["id"] for token in found.get("added_tokens") or ())])
    except (KeyError, TypeError) as error:
        raise ValueError("it has no vocabulary") from error
