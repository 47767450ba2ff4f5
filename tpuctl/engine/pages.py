"""Which KV page belongs to whom: reference counts, prefix sharing by the hash of what a page holds, eviction. No jax.

A page holds the keys and values of ``page_size`` tokens in all layers. Once all of them are computed the page may be
*sealed* under a key that stands for its tokens and all before them; a later sequence that begins alike takes it
instead of computing it. Only sealed pages are ever shared, and nobody writes to a sealed page.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

_KEY_BYTES = 16


def root_key(adapter: str | None) -> bytes:
    """The key before the first page. Another adapter makes other keys and values of the same tokens."""
    return b"" if adapter is None else hashlib.blake2b(adapter.encode(), digest_size=_KEY_BYTES).digest()


def next_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full page after ``parent``.

    A cryptographic hash, since equal keys share without comparing tokens: nobody must be able to make a prompt that
    reads another's page. Also the same in every process, unlike Python's own.
    """
    return hashlib.blake2b(parent + array("i", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


class PagePool:
    """The pages of one engine. A page is free, in use (by one sequence or more), or cached: sealed and used by none."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._users = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that hold a prefix nobody uses now."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages ``allocate`` can give."""
        return len(self._free) + len(self._cached)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Pages of the longest known prefix of a chain of keys. They are not taken yet: see ``share``."""
        found: list[int] = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def share(self, pages: Iterable[int]) -> None:
        """Use sealed pages once more each."""
        for page in pages:
            assert page in self._key_of, f"page {page} is not sealed"
            self._users[page] += 1
            self._cached.pop(page, None)

    def num_cached_among(self, pages: Iterable[int]) -> int:
        """How many of these are in nobody's use: sharing them takes so many from what is available."""
        return sum(page in self._cached for page in pages)

    def allocate(self, count: int) -> list[int] | None:
        """Take pages of one's own, forgetting the oldest prefixes if need be; ``None`` if there are too few."""
        if count > self.num_available:
            return None
        return [self._take_one() for _ in range(count)]

    def seal(self, page: int, key: bytes) -> None:
        """Say that a page's tokens are all computed, and let others find it. The first page of a key keeps it."""
        assert self._users[page] > 0, f"page {page} is in nobody's use"
        if page not in self._key_of and key not in self._page_of:
            self._key_of[page] = key
            self._page_of[key] = page

    def release(self, pages: Sequence[int]) -> None:
        """Use each of a sequence's pages once less. The end of a prefix is forgotten before its beginning."""
        for page in reversed(pages):
            assert self._users[page] > 0, f"page {page} is in nobody's use"
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._free.append(page)

    def forget(self) -> None:
        """Forget all prefixes, for weights that have changed. Pages in use stay with their users."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._key_of.clear()
        self._page_of.clear()

    def _take_one(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._users[page] = 1
        return page
