"""Text to token ids and back. Knows tokenizers; must not import jax, ray or any other room but ``errors``.

Every tokenizer accounts for bytes: the ids of a text carry the number of UTF-8 bytes each stands for, and they
sum to the bytes of the text. That makes bits per byte comparable between tokenizers and with gzip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from jaxtyping import Int32

from tpuctl.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
BYTES_VOCAB_SIZE = 257
BPE_MIN_VOCAB_SIZE = 257
SEPARATOR = "<|endoftext|>"

# A user's tokenizer.json doesn't say which token ends a text; its tokenizer_config.json does, else one of these.
_KNOWN_SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]")

# The tokenizers library keeps some hundred bytes per token while it encodes: long texts go through in spans.
_SPAN_CHARACTERS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The ids of one text. ``num_bytes[i]`` is how many bytes of the text ``ids[i]`` stands for."""

    ids: Int32[np.ndarray, " tokens"]
    num_bytes: Int32[np.ndarray, " tokens"]


class Tokenizer(Protocol):
    """What training, inference and serving need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id it can give."""
        ...

    @property
    def separator_id(self) -> int:
        """The id that stands before and after every document; ``encode`` never gives it."""
        ...

    def encode(self, text: str) -> Encoded:
        """The ids of ``text``, without separators; text that spells a special token is text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, separators left out, invalid UTF-8 replaced."""
        ...


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the UTF-8 text, 256 is the separator."""

    vocab_size = BYTES_VOCAB_SIZE
    separator_id = BYTES_VOCAB_SIZE - 1

    def encode(self, text: str) -> Encoded:
        """One id for each byte."""
        ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return Encoded(ids=ids, num_bytes=np.ones_like(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text."""
        return bytes(i for i in ids if i != self.separator_id).decode(errors="replace")


class FileTokenizer:
    """A ``tokenizer.json`` of the tokenizers library, as it stands but for padding and truncation, which are off."""

    def __init__(self, backend: tokenizers.Tokenizer, *, separator_id: int) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        self._backend = backend
        self.separator_id = separator_id
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> Encoded:
        """The ids by the library; each byte goes to the first token that reaches its character's end."""
        parts = [self._encode_span(span) for span in _spans(text)]
        if len(parts) == 1:
            return parts[0]
        return Encoded(
            ids=np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)]),
            num_bytes=np.concatenate([np.zeros(0, np.int32), *(part.num_bytes for part in parts)]),
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text by the library, special tokens left out."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def _encode_span(self, text: str) -> Encoded:
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1]
        return Encoded(ids=ids, num_bytes=_bytes_by_token(text, ends=ends))


def load_tokenizer(name: str, *, directory: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer a plan names, checked against the model's embedding.

    Args:
        name: ``bytes``, ``bpe:N`` (trained before; lies in ``directory``) or the path of a ``tokenizer.json``.
        directory: The run directory.
        vocab_size: Rows of the model's embedding; an id beyond it would be clamped in silence by a gather.

    Raises:
        DataError: no such tokenizer, an unreadable file, or ids the model has no row for.
    """
    tokenizer = ByteTokenizer() if name == "bytes" else _load_file(tokenizer_path(name, directory=directory))
    declared = bpe_vocab_size(name)
    if declared is not None and tokenizer.vocab_size > declared:
        raise DataError(
            f"{directory / TOKENIZER_FILE} has {tokenizer.vocab_size} ids, the recipe says {name}",
            hint="the run directory holds another run's tokenizer: choose a new run name",
        )
    if tokenizer.vocab_size > vocab_size:
        last = tokenizer.vocab_size - 1
        raise DataError(
            f"tokenizer {name}: id {last} ({tokenizer.decode([last])!r}) has no row in the model's embedding "
            f"of {vocab_size} rows",
            hint=f"set model.vocab_size to at least {tokenizer.vocab_size}",
        )
    return tokenizer


def tokenizer_path(name: str, *, directory: Path) -> Path:
    """Where the ``tokenizer.json`` of ``bpe:N`` or of a path lies; a folder stands for the file in it."""
    path = directory if bpe_vocab_size(name) is not None else Path(name)
    return path if path.suffix == ".json" else path / TOKENIZER_FILE


def bpe_vocab_size(name: str) -> int | None:
    """N of ``bpe:N``, or None for every other tokenizer.

    Raises:
        DataError: N is no number, or too small to hold all bytes and the separator.
    """
    kind, colon, size = name.partition(":")
    if kind != "bpe" or not colon:
        return None
    if not size.isascii() or not size.isdigit() or int(size) < BPE_MIN_VOCAB_SIZE:
        raise DataError(f"tokenizer {name!r}: expected bpe:N with N at least {BPE_MIN_VOCAB_SIZE}")
    return int(size)


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


def _load_file(path: Path) -> FileTokenizer:
    if not path.is_file():
        raise DataError(
            f"no tokenizer at {path}",
            hint="data.tokenizer is bytes, bpe:N, or the path of a tokenizer.json",
        )
    text = path.read_text(encoding="utf-8")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises the bare class, nothing narrower
        raise DataError(f"{path} is not a tokenizer.json: {error}") from error
    return FileTokenizer(backend, separator_id=_separator_id(backend, path))


def _separator_id(backend: tokenizers.Tokenizer, path: Path) -> int:
    config = path.with_name("tokenizer_config.json")
    named = json.loads(config.read_text(encoding="utf-8")).get("eos_token") if config.is_file() else None
    # Older files hold an object with the token's flags instead of its text.
    named = named.get("content") if isinstance(named, dict) else named
    for token in ([named] if named else []) + list(_KNOWN_SEPARATORS):
        number = backend.token_to_id(token)
        if number is not None:
            return number
    raise DataError(
        f"{path}: no token that ends a text (tried {', '.join(_KNOWN_SEPARATORS)})",
        hint='put a tokenizer_config.json with "eos_token" beside it',
    )


def _spans(text: str) -> Iterator[str]:
    for start in range(0, len(text), _SPAN_CHARACTERS):
        yield text[start : start + _SPAN_CHARACTERS]


def _bytes_by_token(text: str, *, ends: np.ndarray) -> Int32[np.ndarray, " tokens"]:
    if not ends.size:
        return np.zeros(0, np.int32)
    reached = np.maximum.accumulate(ends)
    reached[-1] = len(text)
    if not text.isascii():
        reached = _byte_positions(text)[reached]
    return np.diff(reached, prepend=0).astype(np.int32)


def _byte_positions(text: str) -> np.ndarray:
    """Byte offset of each character's start, and of the end of the text."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(widths)])
