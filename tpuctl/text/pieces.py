"""The bytes that each id of a tokenizer.json stands for, where its decoder works token by token.

Two kinds do: byte-level BPE, whose tokens spell bytes in an alphabet of printable characters, and SentencePiece, whose
tokens are text with ``▁`` for a space and ``<0xE2>`` for a byte. Together they are what decoder models use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import tokenizers

_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Kind = Literal["byte-level", "sentencepiece"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Ids to bytes. ``leading_spaces`` at the start of a text are the tokenizer's, not the text's."""

    backend: tokenizers.Tokenizer
    kind: Kind
    byte_fallback: bool
    leading_spaces: int
    added: dict[int, Any]
    _known: dict[int, bytes] = field(default_factory=dict)

    def text(self, number: int) -> bytes:
        """The bytes of an id; none for a special token and for an id that is no token."""
        added = self.added.get(number)
        return b"" if added is not None and added.special else self.spelled(number)

    def spelled(self, number: int) -> bytes:
        """The bytes of an id, a special token's name among them."""
        number = int(number)
        if number not in self._known:
            self._known[number] = self._bytes(number)
        return self._known[number]

    def _bytes(self, number: int) -> bytes:
        token = self.backend.id_to_token(number) if number >= 0 else None
        if token is None:
            return b""
        if self.kind == "byte-level":
            return token.encode() if number in self.added else _from_alphabet(token)
        spelled = _BYTE.fullmatch(token) if self.byte_fallback else None
        return bytes.fromhex(spelled[1]) if spelled else token.replace(_SPACE, " ").encode()


def pieces_of(backend: tokenizers.Tokenizer) -> Pieces | None:
    """The pieces of a tokenizer, or None where its decoder does something else."""
    decoder = backend.decoder
    steps = list(_steps(json.loads(decoder.__getstate__()))) if decoder is not None else []
    kinds = {step["type"] for step in steps}
    added = backend.get_added_tokens_decoder()
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return Pieces(backend=backend, kind="byte-level", byte_fallback=False, leading_spaces=0, added=added)
    if kinds & {"Replace", "Metaspace"} and all(map(_is_sentencepiece, steps)):
        return Pieces(
            backend=backend,
            kind="sentencepiece",
            byte_fallback="ByteFallback" in kinds,
            leading_spaces=sum(map(_leading_spaces, steps)),
            added=added,
        )
    return None


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _is_sentencepiece(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "Replace":
            return bool(step["pattern"] == {"String": _SPACE} and step["content"] == " ")
        case "Metaspace":
            return bool(step["replacement"] == _SPACE)
        case "Strip":
            return bool(step["content"] == " " and step["stop"] == 0)
        case kind:
            return kind in ("ByteFallback", "Fuse")


def _leading_spaces(step: dict[str, Any]) -> int:
    if step["type"] == "Strip":
        return int(step["start"])
    return int(step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: itself where it is a visible Latin-1 character, else one from U+0100 on, in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _alphabet()


def _from_alphabet(token: str) -> bytes:
    """The bytes of a token; one with a letter that is none of the alphabet stands for itself."""
    found = [_BYTE_OF.get(letter) for letter in token]
    return token.encode() if None in found else bytes(byte for byte in found if byte is not None)
