"""A tokenizer of the tokenizers library, as it stands but for padding and truncation, which are off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import tokenizers
from jaxtyping import Int32

from tpuctl.errors import DataError
from tpuctl.text.detokenize import ByteDetokenizer, Detokenizer, LibraryDetokenizer
from tpuctl.text.pieces import pieces_of
from tpuctl.text.special import SpecialTokens
from tpuctl.text.tokenizer import Encoded, Parsed, require_unicode

# The tokenizers library keeps some hundred bytes per token while it encodes: long texts go through in spans.
_SPAN_CHARACTERS = 1 << 20


class FileTokenizer:
    """The tokenizer of a ``tokenizer.json`` or a ``tokenizer.model``."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special: SpecialTokens,
        separator_id: int,
        adds_bos: bool | None = None,
        rows: int | None = None,
    ) -> None:
        """Wraps the library's tokenizer, which is changed.

        Args:
            backend: As read from its file.
            special: The tokens that begin, end and pad.
            separator_id: Stands between documents.
            adds_bos: Whether a prompt begins with ``bos``; None leaves it to the library's post-processor.
            rows: Those of the model, where some special tokens may lie beyond them; to be refused when they are met.
        """
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        self._backend = backend
        self._pieces = pieces_of(backend)
        self._ids = np.array(sorted(backend.get_vocab(with_added_tokens=True).values()), dtype=np.int64)
        self._rows = int(self._ids[-1]) + 1 if rows is None else rows
        self._adds_bos = adds_bos
        self._special_ids = [number for number, token in backend.get_added_tokens_decoder().items() if token.special]
        self.special = special
        self.separator_id = separator_id
        self.vocab_size: int = 1 + int(self._ids[self._ids < self._rows][-1])

    def encode(self, text: str) -> Encoded:
        """The ids by the library; each byte goes to the first token that reaches its character's end."""
        parts = [self._encode_span(span) for span in _spans(text)]
        if len(parts) == 1:
            return parts[0]
        return Encoded(
            ids=np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)]),
            num_bytes=np.concatenate([np.zeros(0, np.int32), *(part.num_bytes for part in parts)]),
        )

    def encode_prompt(self, text: str) -> Int32[np.ndarray, " tokens"]:
        """The ids by the library and its post-processor, with one ``bos`` where there would be two."""
        return self.encode_prompts([text])[0]

    def encode_prompts(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " tokens"]]:
        """Each as from ``encode_prompt``, all cores at work."""
        for text in texts:
            require_unicode(text)
        encodings = self._parser.encode_batch(list(texts), add_special_tokens=True)
        return [self._with_rows(np.array(self._with_bos(encoding.ids), dtype=np.int32)) for encoding in encodings]

    def parse(self, text: str) -> Parsed:
        """The ids by the library, special tokens read as such."""
        require_unicode(text)
        encoding = self._parser.encode(text, add_special_tokens=False)
        ids = self._with_rows(np.array(encoding.ids, dtype=np.int32))
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        num_bytes = _bytes_by_token(text, ends=spans[:, 1])
        return Parsed(ids=ids, spans=spans, num_bytes=np.where(np.isin(ids, self._special_ids), 0, num_bytes))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out."""
        if self._pieces is None:
            text: str = self._backend.decode(list(ids), skip_special_tokens=True)
            return text
        detokenizer = self.detokenizer()
        return detokenizer.add(ids) + detokenizer.finish()

    def detokenizer(self, prompt_ids: Sequence[int] = (), *, keep_special: bool = False) -> Detokenizer:
        """Ids to text as they come, going on from a prompt."""
        pieces = self._pieces
        if pieces is None:
            return LibraryDetokenizer(self._backend, prompt_ids=prompt_ids, keep_special=keep_special)
        piece = pieces.spelled if keep_special else pieces.text
        return ByteDetokenizer(piece, prompt_ids=prompt_ids, leading_spaces=pieces.leading_spaces)

    def spelled(self, number: int) -> bytes:
        """The bytes of one id alone; by the library where its decoder doesn't work token by token."""
        if self._pieces is not None:
            return self._pieces.spelled(number)
        text: str = self._backend.decode([int(number)], skip_special_tokens=False)
        return text.encode()

    @cached_property
    def _parser(self) -> tokenizers.Tokenizer:
        """A copy that reads special tokens: the switch is the library object's own, and others may be encoding."""
        parser = tokenizers.Tokenizer.from_str(self._backend.to_str())
        parser.encode_special_tokens = False
        return parser

    @cached_property
    def _library_adds_bos(self) -> bool:
        """Whether the library's post-processor begins every text with ``bos``."""
        ids: list[int] = self._parser.encode("", add_special_tokens=True).ids
        return self.special.bos_id is not None and ids[:1] == [self.special.bos_id]

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.special.bos_id
        if self._adds_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids[1:] if ids[:2] == [bos, bos] and (self._adds_bos or self._library_adds_bos) else ids

    def _with_rows(self, ids: Int32[np.ndarray, " tokens"]) -> Int32[np.ndarray, " tokens"]:
        if ids.size and ids.max() >= self._rows:
            number = int(ids.max())
            raise DataError(
                f"token {self._backend.id_to_token(number)!r} is id {number}, and the model has {self._rows} rows",
                hint="leave it out of the text: the model was made without it",
            )
        return ids

    def _encode_span(self, text: str) -> Encoded:
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1]
        return Encoded(ids=ids, num_bytes=_bytes_by_token(text, ends=ends))


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
