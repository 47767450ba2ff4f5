"""Ids to text as they come: never a part of a character, never text of the prompt, and in sum the text of all ids."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

import tokenizers


class Detokenizer(Protocol):
    """The text of one answer, piece by piece."""

    def add(self, ids: Sequence[int]) -> str:
        """The text that these further ids complete. The start of an unfinished character is held back."""
        ...

    def finish(self) -> str:
        """What was held back: U+FFFD for a character that was never finished."""
        ...


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes: all that are bytes, or pieces of text with bytes to fall back on.

    The bytes go through Python's incremental UTF-8 decoder, so a token costs the same whatever came before it.
    """

    def __init__(
        self, piece: Callable[[int], bytes], *, prompt_ids: Sequence[int] = (), leading_spaces: int = 0
    ) -> None:
        """Starts behind ``prompt_ids``.

        Args:
            piece: The bytes of an id; none for one that is left out of the text.
            prompt_ids: What comes before. A character that its end leaves unfinished is part of the answer.
            leading_spaces: Spaces at the very start of a text that only the tokenizer has put there, as SentencePiece
                does. A text that goes on from a prompt keeps its first space.
        """
        self._piece = piece
        self._leading_spaces = leading_spaces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.add(prompt_ids)

    def add(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        return self._decoder.decode(self._stripped(b"".join(map(self._piece, ids))))

    def finish(self) -> str:
        """U+FFFD for what can no longer become a character."""
        return self._decoder.decode(b"", final=True)

    def _stripped(self, data: bytes) -> bytes:
        if not self._leading_spaces or not data:
            return data
        stripped = data.lstrip(b" ")
        spaces = min(self._leading_spaces, len(data) - len(stripped))
        self._leading_spaces = 0 if stripped else self._leading_spaces - spaces
        return data[spaces:]


class LibraryDetokenizer:
    """For every other decoder of the tokenizers library, e.g. WordPiece, which has no part of a character."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, prompt_ids: Sequence[int] = (), keep_special: bool = False
    ) -> None:
        self._backend = backend
        self._stream = tokenizers.decoders.DecodeStream(skip_special_tokens=not keep_special)
        self.add(prompt_ids)

    def add(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        return "".join(self._stream.step(self._backend, int(i)) or "" for i in ids)

    def finish(self) -> str:
        """Nothing is held back."""
        return ""
