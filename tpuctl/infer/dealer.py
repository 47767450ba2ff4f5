"""Which part a replica gets next: the one after its last, since it can read on there; else from the largest gap."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise


class Dealer:
    """Deals every part once; one that is given back, again."""

    def __init__(self, parts: Iterable[int]) -> None:
        self._free = set(parts)
        self._last: dict[Hashable, int] = {}

    @property
    def left(self) -> int:
        """How many parts nobody has."""
        return len(self._free)

    def deal(self, replica: Hashable) -> int | None:
        """A part for this replica, or None."""
        if not self._free:
            return None
        following = self._last.get(replica, -2) + 1
        part = following if following in self._free else self._from_largest_gap()
        self._free.remove(part)
        self._last[replica] = part
        return part

    def give_back(self, part: int) -> None:
        """The part is not done: somebody else may have it."""
        self._free.add(part)

    def _from_largest_gap(self) -> int:
        """The start of the longest run of free parts, or its middle if somebody is working towards its start."""
        free = sorted(self._free)
        ends = [-1, *(at for at, (one, other) in enumerate(pairwise(free)) if other != one + 1), len(free) - 1]
        first, after = max(((one + 1, other + 1) for one, other in pairwise(ends)), key=lambda run: run[1] - run[0])
        towards = free[first] - 1 in self._last.values()
        return free[(first + after) // 2] if towards else free[first]
