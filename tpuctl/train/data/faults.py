"""Rows that became no document, or only a part of one: counted by what is wrong with them, and told."""

from __future__ import annotations

import logging

import numpy as np
from jaxtyping import Int32

from tpuctl.train.data.documents import FAULTS, Fault

_log = logging.getLogger(__name__)

_SAID: dict[Fault, str] = {
    "empty": "rows without text skipped",
    "malformed": "rows that are no conversation skipped",
    "unanswered": "conversations with nothing to learn skipped",
    "unrendered": "conversations that the chat template refuses skipped",
    "too long": "conversations longer than a row skipped",
    "cut": "conversations longer than a row cut short",
}


class Faults:
    """The faults that a reader has met; the first of each kind is told with its place."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(FAULTS), np.int32)

    @property
    def counts(self) -> Int32[np.ndarray, " faults"]:
        """How often each of ``FAULTS`` was met."""
        return self._counts.copy()

    def note(self, fault: Fault, *, place: str, detail: str) -> None:
        """Count one."""
        number = FAULTS.index(fault)
        self._counts[number] += 1
        if detail and self._counts[number] == 1:
            _log.warning("%s: %s", place, detail)


class FaultLog:
    """Tells of a host's faults: of each kind when it is first met, and each time its number has doubled."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._told = np.zeros(len(FAULTS), np.int64)

    def tell(self, counts: Int32[np.ndarray, " faults"]) -> None:
        """Take note of the numbers so far."""
        for number in np.flatnonzero(counts >= np.maximum(1, 2 * self._told)):
            self._told[number] = counts[number]
            said = _SAID[FAULTS[number]]
            _log.warning("%s: %d %s so far on this host", self._uri, counts[number], said)
