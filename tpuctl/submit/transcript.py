"""What of a job's log has been shown: one offset into the log's text, and nothing else to go wrong.

A stream may drop, start again from the front, or start again somewhere near the end; lines may repeat. So no line is
ever recognised by its words: the whole log, fetched over REST, is the truth, a stream is only let in once its place in
that log is proven, and what has been shown is always the first ``offset`` characters. See docs/design/submission.md.

All text here has one kind of line end: Ray's server turns CR and CRLF into LF when it reads a log back, and so do we.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

_ANCHOR_CHARS = 4096
_PREFIX_CHARS = 65536


class Transcript:
    """The lines of one log, each given out once, in order. ``offset`` counts characters of the log."""

    def __init__(self) -> None:
        self.offset = 0
        self._anchor = ""
        self._unfinished: list[str] = []

    def skip(self, text: str) -> None:
        """Count the beginning of the log as shown; ``text`` must end a line."""
        self.offset = len(text)
        self._anchor = text[-_ANCHOR_CHARS:]

    def extend(self, text: str) -> Iterator[str]:
        """Take the text that follows what is there; yields the lines it completes."""
        if not text:
            return
        self.offset += len(text)
        self._anchor = (self._anchor + text)[-_ANCHOR_CHARS:] if len(text) < _ANCHOR_CHARS else text[-_ANCHOR_CHARS:]
        head, newline, rest = text.partition("\n")
        self._unfinished.append(head)
        if not newline:
            return
        # Parts of a line are joined only when it ends, so that a line of 12 MB costs its length once.
        yield "".join(self._unfinished)
        *whole, last = rest.split("\n")
        self._unfinished = [last]
        yield from whole

    def catch_up(self, log: str) -> Iterator[str]:
        """Take the whole log as it stands; yields the lines not yet given out. A log behind ours yields nothing."""
        return self.extend(log[self._place_in(log) :])

    def finish(self) -> Iterator[str]:
        """The last line, if it has no newline."""
        last = "".join(self._unfinished)
        self._unfinished = []
        if last:
            yield last

    def _place_in(self, log: str) -> int:
        """Where the log goes on after what was shown: at our offset, unless two readings of odd bytes differ."""
        if len(log) < self.offset or log.endswith(self._anchor, 0, self.offset):
            return self.offset
        nearest = _nearest(log, self._anchor, self.offset)
        return self.offset if nearest is None else nearest


class Placement:
    """Finds where in the log a stream began, from the text it has sent so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._prefix = ""
        self.received = 0

    @property
    def text(self) -> str:
        """All the text so far."""
        return "".join(self._pieces)

    def add(self, text: str) -> None:
        """Note the next text of the stream."""
        self._pieces.append(text)
        self._prefix += text[: _PREFIX_CHARS - len(self._prefix)]
        self.received += len(text)

    def end_in(self, log: str) -> int | None:
        """The offset in ``log`` just past all that was received, if only one fits.

        ``log`` must have been fetched after the text was received, so the true place is among those that fit; one
        that is alone is therefore true. Logs that repeat themselves may leave several: then None, and more text or
        a later log may decide.
        """
        start = log.find(self._prefix)
        if not self._prefix or start < 0 or log.find(self._prefix, start + 1) >= 0:
            return None
        end = start + self.received
        return end if end <= len(log) else None


class LineEnds:
    """Turns CRLF and CR into LF over pieces of text; a CR at the end of a piece waits for the next."""

    def __init__(self) -> None:
        self._decoder = io.IncrementalNewlineDecoder(None, translate=True)

    def feed(self, text: str) -> str:
        """The piece with one kind of line end."""
        return self._decoder.decode(text)


class StreamView:
    """A stream beside the transcript: where it stands in the log, if that is known, and what of it is new."""

    def __init__(self, transcript: Transcript) -> None:
        self.line_ends = LineEnds()
        self.waiting = False
        """Whether text has come that can't be shown until its place in the log is known."""
        self._transcript = transcript
        self._placement = Placement()
        self._position: int | None = None

    def take(self, text: str) -> Iterator[str]:
        """The next text of the stream; yields the lines it adds."""
        if self._position is None:
            self._placement.add(text)
            self.waiting = True
            return
        unseen = self._transcript.offset - self._position
        self._position += len(text)
        yield from self._transcript.extend(text[max(0, unseen) :])

    def place_in(self, log: str) -> None:
        """Try to find the stream's place in a log that the transcript has just caught up with."""
        if not self.waiting:
            return
        end = self._placement.end_in(log)
        if end is not None and end <= self._transcript.offset:
            self._position, self._placement = end, Placement()
        self.waiting = False

    def assume_from_start(self) -> Iterator[str]:
        """Take the stream for a replay from the log's first character."""
        text, self._placement = self._placement.text, Placement()
        self._position, self.waiting = 0, False
        return self.take(text)


def unify_line_ends(log: str, *, final: bool) -> str:
    """A whole log with one kind of line end. Unless it is final, a CR at its end waits, as ``LineEnds`` has it."""
    if "\r" not in log:
        return log
    if not final and log.endswith("\r"):
        log = log[:-1]
    return log.replace("\r\n", "\n").replace("\r", "\n")


def start_of_last_lines(log: str, count: int) -> int:
    """The offset at which the last ``count`` lines begin; a last line without a newline is one too."""
    place = len(log) - 1 if log.endswith("\n") else len(log)
    for _ in range(count):
        place = log.rfind("\n", 0, place)
        if place < 0:
            return 0
    return min(place + 1, len(log)) if count else len(log)


def _nearest(log: str, anchor: str, offset: int) -> int | None:
    low = max(0, offset - 4 * _ANCHOR_CHARS)
    ends = []
    found = log.find(anchor, low, offset + 4 * _ANCHOR_CHARS)
    while found >= 0:
        ends.append(found + len(anchor))
        found = log.find(anchor, found + 1, offset + 4 * _ANCHOR_CHARS)
    return min(ends, key=lambda end: abs(end - offset), default=None)
