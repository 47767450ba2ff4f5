"""What a tokenizer's name means: ``bytes``, ``bpe:N``, or where a ``tokenizer.json`` lies."""

from __future__ import annotations

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
    else:
        hint = "'bytes', 'bpe:N' or the path or gs:// URI of a tokenizer.json"
        findings.refuse("data.tokenizer", f"unknown tokenizer {name!r}", hint)


def tokenizer_ids(name: str) -> int | None:
    """How many ids the tokenizer has, if its name tells: all but those in files do."""
    if name == "bytes":
        return SMALLEST_VOCABULARY
    kind, _, size = name.partition(":")
    if kind != "bpe" or not (size.isascii() and size.isdigit()):
        return None
    return int(size) if SMALLEST_VOCABULARY <= int(size) <= _LARGEST_BPE else None


def is_tokenizer_file(name: str) -> bool:
    """Whether the name is a path or in a bucket: a ``.json`` file, or anything that can't be a plain word."""
    if "://" in name:
        return name.startswith("gs://")
    return name.endswith(".json") or "/" in name or name.startswith((".", "~"))
