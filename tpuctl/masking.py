"""What must never be printed: which variables hold secrets, and how a text loses their values.

Used on both sides: the control side masks what it prints, a job's driver everything that goes through its log.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from typing import TextIO
from urllib.parse import quote

MASK = "***"

_SHORT = 4
_SECRET_WORDS = {"TOKEN", "TOKENS", "KEY", "KEYS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE"}
_SECRET_WORDS |= {"CREDENTIAL", "CREDENTIALS", "PAT", "AUTH"}
_SECRET_ENDS = ("TOKEN", "SECRET", "PASSWORD", "APIKEY", "CREDENTIALS", "PASSWD")


def looks_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret; errs on the side of masking."""
    words = name.upper().split("_")
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)


class Masker:
    """Replaces secret values, however a log is likely to quote them, by ``***``."""

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in secret.splitlines() if part.strip()}
        forms = {
            form for part in parts for form in (part, json.dumps(part)[1:-1], repr(part)[1:-1], quote(part, safe=""))
        }
        # A value of one or two letters would mask half of every line, so it must stand alone.
        patterns = [
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def __call__(self, text: str) -> str:
        """``text`` without the secrets."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)


class MaskedStream(io.TextIOBase):
    """A text stream that masks what is written to it, piece by piece; Ray writes a worker's line in one piece."""

    def __init__(self, stream: TextIO, mask: Masker) -> None:
        self._stream = stream
        self._mask = mask

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream behind."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream behind does with what it can't encode."""
        return self._stream.errors

    def writable(self) -> bool:
        """True: it is for writing only."""
        return True

    def write(self, text: str) -> int:
        """Write the text without the secrets."""
        self._stream.write(self._mask(text))
        return len(text)

    def flush(self) -> None:
        """Pass on what the stream behind holds back."""
        self._stream.flush()

    def fileno(self) -> int:
        """The file behind, as ``faulthandler`` wants it. What is written there is not masked."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether a terminal is behind."""
        return self._stream.isatty()
