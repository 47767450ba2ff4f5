"""API keys: several, compared in constant time, never kept or shown in the clear."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from tpuctl.errors import UsageError

_MIN_CHARACTERS = 8


class Keys:
    """The keys that open the endpoint."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple({_digest(key) for key in keys})

    def __len__(self) -> int:
        return len(self._digests)

    def matching(self, authorization: str) -> bytes | None:
        """The digest of the key that an ``Authorization`` header carries, None if it is none of them.

        Takes the same time whichever it is.
        """
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        hits = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest if scheme.lower() == "bearer" and any(hits) else None


def read_keys(text: str, *, source: str) -> Keys:
    """The keys of a file or a variable: one on each line, lines that begin with ``#`` left out.

    Raises:
        UsageError: There is none, or one that is too short to be a secret.
    """
    found = [line.strip() for line in text.splitlines()]
    keys = [line for line in found if line and not line.startswith("#")]
    if not keys:
        raise UsageError(f"{source} holds no API key", hint="put one key on each line")
    if any(len(key) < _MIN_CHARACTERS for key in keys):
        raise UsageError(f"{source}: a key has fewer than {_MIN_CHARACTERS} characters", hint="use longer ones")
    return Keys(keys)


def read_key_file(path: Path) -> Keys:
    """The keys of a file.

    Raises:
        UsageError: It can't be read, or holds no usable key.
    """
    try:
        return read_keys(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="serve.api_key_file is a file with one key on each line"
        ) from error


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
