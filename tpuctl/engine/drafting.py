"""Drafts: what a text may go on with, looked up in the text itself. No jax, no model.

Where the last tokens stand earlier in a sequence, what followed them there is likely to follow here: in a quotation, a
piece of code that is edited, a record copied field by field (Saxena 2023, "Prompt lookup decoding"). The step draws a
token after each token of a draft, with the key of its own place, so a draft never changes what is drawn: it is right
or it is dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_CANDIDATES = 8
"""Earlier places that a search looks at, the latest first: there are many of a pair such as a comma and a space."""

_LONGEST = 16
"""Tokens back from a place that a search compares."""

_LEAST_DOUBT, _MOST_DOUBT = 1, 8
"""Of matched tokens, those that promise nothing: one more after each miss, one less for each token foreseen."""


class Lookup:
    """Where a sequence's end stands earlier in it, and what followed there.

    Each token is looked at once, as it comes. What was foreseen is held against what came whether it was drafted or
    not, so being right costs nothing to find out: after misses only longer matches are believed.
    """

    def __init__(self, tokens: list[int]) -> None:
        """``tokens`` is the sequence's own list, which grows."""
        self._tokens = tokens
        self._latest: dict[int, int] = {}  # a pair of tokens → the last place where it ends
        self._earlier = array("i")  # of each place read the one before it where the same pair ends, or -1
        self._next = 0  # the place whose token should come next, or 0
        self._matched = 0  # tokens before that place that are also those at the end
        self._doubt = _LEAST_DOUBT

    @property
    def promise(self) -> int:
        """Tokens worth drafting, after those read: the more, the longer the match."""
        return max(0, self._matched - self._doubt)

    def read(self) -> None:
        """Take on the tokens that have come."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        if (first := len(earlier)) == len(tokens):
            return
        last = tokens[first - 1] if first else -1
        for place in range(first, len(tokens)):
            token = tokens[place]
            if self._matched:
                self._compare(token)
            pair = last << 32 | token
            earlier.append(latest.get(pair, -1))
            latest[pair] = place
            last = token
        if not self._matched:
            self._search()

    def draft(self, most: int) -> tuple[int, ...]:
        """Up to ``most`` tokens, and no more than promised. A loop goes round again."""
        count = min(most, self.promise)
        found = self._tokens[self._next : self._next + count]
        period = len(self._tokens) - self._next
        while len(found) < count:
            found.append(found[-period])
        return tuple(found)

    def _compare(self, token: int) -> None:
        if token == self._tokens[self._next]:
            self._next += 1
            self._matched += 1
            self._doubt = max(_LEAST_DOUBT, self._doubt - 1)
            return
        if self.promise:
            self._doubt = min(_MOST_DOUBT, self._doubt + 1)
        self._matched = 0

    def _search(self) -> None:
        """The longest match, of those equally long the latest."""
        candidate = self._earlier[-1]
        for _ in range(_CANDIDATES):
            if candidate < 0 or self._matched == _LONGEST:
                return
            length = self._common(candidate)
            if length > self._matched:
                self._matched, self._next = length, candidate + 1
            candidate = self._earlier[candidate]

    def _common(self, place: int) -> int:
        """Tokens up to a place that are those at the end, at least the pair."""
        tokens, back = self._tokens, len(self._tokens) - 1 - place
        length = 2
        while length < min(_LONGEST, place + 1) and tokens[place - length] == tokens[place - length + back]:
            length += 1
        return length


def standing(drafts: Sequence[int], drawn: list[int]) -> list[int]:
    """The tokens that stand, of those drawn after the newest token and after each draft: as long as the drafts are
    right, and one more."""
    right = 0
    while right < len(drafts) and drafts[right] == drawn[right]:
        right += 1
    return drawn[: right + 1]
