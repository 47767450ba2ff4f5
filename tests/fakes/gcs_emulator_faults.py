"""What an emulated bucket does wrong on request, and the count of what it was asked."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Fault:
    """One way to fail. ``op`` and ``name`` are regular expressions on the operation and on ``bucket/object``.

    Of the requests that fit, the first ``skip`` pass; of the others every ``every``-th fails, ``times`` in all
    (None: without end). It fails by the fields that are set: an HTTP ``status`` with a ``message``; ``reset``: the
    connection is closed without an answer; ``lost_reply``: the same, but the work was done; ``delay_seconds`` before
    all else; ``truncate_at``: so many bytes of the body, then the connection is closed; ``corrupt``: a bit is flipped;
    ``accept_bytes``: so many bytes of an upload are taken, then the connection is closed.
    """

    op: str = ""
    name: str = ""
    skip: int = 0
    every: int = 1
    times: int | None = 1
    status: int | None = None
    message: str = "injected"
    reset: bool = False
    lost_reply: bool = False
    delay_seconds: float = 0.0
    truncate_at: int | None = None
    corrupt: bool = False
    accept_bytes: int | None = None
    hits: int = 0
    seen: int = 0

    def strikes(self, op: str, name: str) -> bool:
        """Whether this request fails; counts it."""
        if not (re.search(self.op, op) and re.search(self.name, name)):
            return False
        self.seen += 1
        counted = self.seen - self.skip
        if counted < 1 or counted % self.every or self.hits == self.times:
            return False
        self.hits += 1
        return True


NO_FAULT = Fault()


@dataclass
class Faults:
    """The faults in force. Safe to change while requests are served."""

    _items: list[Fault] = field(default_factory=list)
    _all: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **fields: object) -> int:
        """Put a fault in force; gives its number."""
        with self._lock:
            self._all.append(Fault(**fields))  # type: ignore[arg-type]
            self._items.append(self._all[-1])
            return len(self._all) - 1

    def hits(self, number: int) -> int:
        """How many requests a fault has struck, also when it is no longer in force."""
        return self._all[number].hits

    def clear(self) -> None:
        """Serve all requests well again."""
        with self._lock:
            self._items.clear()

    def pick(self, op: str, name: str) -> Fault:
        """The first fault that strikes this request, or none."""
        with self._lock:
            return next((fault for fault in self._items if fault.strikes(op, name)), NO_FAULT)


@dataclass
class Tally:
    """Requests by operation."""

    _requests: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, operation: str) -> None:
        """One request more."""
        with self._lock:
            self._requests[operation] += 1

    def of(self, operation: str | None) -> int:
        """How many there were of an operation, or in all."""
        with self._lock:
            return self._requests.total() if operation is None else self._requests[operation]

    def clear(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._requests.clear()
