"""One line of a job's log: its text, the host that printed it, the event it carries. Secrets never get this far.

Ray prints what a worker wrote as ``(RayTrainWorker pid=123, ip=10.0.0.7) text``, and leaves the ip out for workers on
the driver's own machine. Which host of the slice that is, the worker says itself in its ``host`` event; since that
event comes with the very same prefix, the prefix is the key and no address needs to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpuctl.masking import Masker, looks_secret
from tpuctl.runs.events import MARK, Event, parse_line

_PREFIX = re.compile(r"(?:\x1b\[[\d;]*m)*\((?P<source>[^\n]{0,200}?pid=\d+(?:, ip=[^()\s]+)?)\)(?:\x1b\[[\d;]*m)* ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line without its newline. ``host`` is the host of the slice, None for the driver and for what is not known.

    ``text`` has lost Ray's prefix if ``host`` is known.
    """

    text: str
    host: int | None = None
    event: Event | None = None


class LineReader:
    """Makes lines of raw text. Remembers which prefix belongs to which host, and the secrets to mask."""

    def __init__(self, *, secrets: Iterable[str] = ()) -> None:
        self._hosts: dict[str, int] = {}
        self.mask = Masker(secrets)

    def read(self, raw: str) -> Line:
        """The line that ``raw`` is."""
        raw = self.mask(raw)
        event = parse_line(raw) if MARK in raw else None
        match = _PREFIX.match(raw)
        if match is None:
            return Line(text=raw, event=event)
        source = match["source"]
        if event is not None and event["event"] == "host" and isinstance(event.get("host"), int):
            self._hosts[source] = event["host"]
        host = self._hosts.get(source)
        return Line(text=raw if host is None else raw[match.end() :], host=host, event=event)

    def learn(self, log: str) -> None:
        """Learn the hosts of a whole log beforehand, so that a line before its host's event has its host too."""
        place = log.find(MARK)
        while place >= 0:
            start, end = log.rfind("\n", 0, place) + 1, log.find("\n", place)
            line = log[start : end if end >= 0 else len(log)]
            if '"event":"host"' in line:
                self.read(line)
            place = log.find(MARK, start + len(line))


def known_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of our own environment that are secrets by their names. A job's secrets mostly come from there, and where
    its plan is not at hand, as when only its log is read, this is all that can be known of them."""
    return tuple(value for name, value in environ.items() if value and looks_secret(name))
