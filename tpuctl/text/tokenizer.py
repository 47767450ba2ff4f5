"""What a tokenizer is to the rest of the house, and the simplest one: bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int32, Int64

from tpuctl.errors import DataError
from tpuctl.text.detokenize import ByteDetokenizer, Detokenizer
from tpuctl.text.special import SEPARATOR, SpecialTokens

BYTES_VOCAB_SIZE = 257


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The ids of one text. ``num_bytes[i]`` is how many bytes of the text ``ids[i]`` stands for."""

    ids: Int32[np.ndarray, " tokens"]
    num_bytes: Int32[np.ndarray, " tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """The ids of a text in which special tokens were read as such.

    ``spans[i]`` are the first character and the one behind the last that ``ids[i]`` stands for; the parts of one
    character all have its span. ``num_bytes`` is as in ``Encoded``, but 0 for special tokens: they are no text.
    """

    ids: Int32[np.ndarray, " tokens"]
    spans: Int64[np.ndarray, "tokens 2"]
    num_bytes: Int32[np.ndarray, " tokens"]


class Tokenizer(Protocol):
    """What training, inference and serving need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that has a row in the model."""
        ...

    @property
    def separator_id(self) -> int:
        """The id that stands before and after every document; ``encode`` never gives it."""
        ...

    @property
    def special(self) -> SpecialTokens:
        """The tokens that begin, end and pad."""
        ...

    def encode(self, text: str) -> Encoded:
        """The ids of ``text``, without separators; text that spells a special token is text."""
        ...

    def encode_prompt(self, text: str) -> Int32[np.ndarray, " tokens"]:
        """The ids of a prompt: special tokens are read as such, and the tokenizer's own are put around.

        A prompt that begins with the token that begins every text gets no second one.

        Raises:
            DataError: a token that the model has no row for, or text that is no Unicode.
        """
        ...

    def encode_prompts(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " tokens"]]:
        """The ids of many prompts, each as from ``encode_prompt``, in parallel where the library can; raises as it."""
        ...

    def parse(self, text: str) -> Parsed:
        """The ids of a rendered conversation: special tokens are read as such, and nothing is put around.

        Raises:
            DataError: as ``encode_prompt`` does.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out, each run of bytes that is no UTF-8 replaced by U+FFFD."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), *, keep_special: bool = False) -> Detokenizer:
        """Ids to text as they come, going on from a prompt."""
        ...

    def spelled(self, number: int) -> bytes:
        """The bytes of one id alone, a special token's name among them; none for an id that is no token."""
        ...


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the UTF-8 text, 256 is the separator."""

    vocab_size = BYTES_VOCAB_SIZE
    separator_id = BYTES_VOCAB_SIZE - 1
    special = SpecialTokens(names={"eos_token": SEPARATOR}, bos_id=None, eos_ids=(separator_id,), pad_id=None)

    def encode(self, text: str) -> Encoded:
        """One id for each byte."""
        ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return Encoded(ids=ids, num_bytes=np.ones_like(ids))

    def encode_prompt(self, text: str) -> Int32[np.ndarray, " tokens"]:
        """One id for each byte, and for each separator that is spelled."""
        return self.parse(text).ids

    def encode_prompts(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " tokens"]]:
        """One after the other."""
        return [self.encode_prompt(text) for text in texts]

    def parse(self, text: str) -> Parsed:
        """One id for each byte, and for each separator that is spelled."""
        require_unicode(text)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        start = 0
        for part in re.split(f"({re.escape(SEPARATOR)})", text):
            if part == SEPARATOR:
                ids.append(self.separator_id)
                spans.append((start, start + len(part)))
            else:
                ids += part.encode()
                spans += [(start + i, start + i + 1) for i, letter in enumerate(part) for _ in letter.encode()]
            start += len(part)
        found = np.array(ids, dtype=np.int32)
        is_text = (found != self.separator_id).astype(np.int32)
        return Parsed(ids=found, spans=np.array(spans, dtype=np.int64).reshape(-1, 2), num_bytes=is_text)

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text."""
        return _whole(self.detokenizer(), ids)

    def detokenizer(self, prompt_ids: Sequence[int] = (), *, keep_special: bool = False) -> Detokenizer:
        """Bytes to text as they come."""
        separator = SEPARATOR.encode() if keep_special else b""
        table = [bytes([i]) for i in range(self.separator_id)] + [separator]
        return ByteDetokenizer(lambda i: table[i] if 0 <= i < len(table) else b"", prompt_ids=prompt_ids)

    def spelled(self, number: int) -> bytes:
        """The byte, or the separator's name."""
        if number == self.separator_id:
            return SEPARATOR.encode()
        return bytes([number]) if 0 <= number < self.separator_id else b""


def require_unicode(text: str) -> None:
    """Refuse text that has no UTF-8: half of a surrogate pair, as broken JSON escapes give it.

    Raises:
        DataError: names the character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"character {error.start} of the text is {text[error.start]!a}, half of a character") from error


def _whole(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return detokenizer.add(ids) + detokenizer.finish()
