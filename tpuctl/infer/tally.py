"""What is known of a job while it runs: rows done, how fast, how many bad ones are borne. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.errors import DataError
from tpuctl.infer.output import Record
from tpuctl.infer.replica import Done


def most_quarantined(rule: str, *, rows: int) -> int:
    """The number of rows that ``"100"`` or ``"1%"`` of ``rows`` allows; of a share at least one."""
    if not rule.endswith("%"):
        return int(rule)
    return math.ceil(float(rule[:-1]) / 100 * rows)


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts parts as they are done. ``total`` are the rows of the work; ``most_bad`` of them may go to quarantine."""

    total: int
    most_bad: int
    started: float
    records: dict[int, Record] = field(default_factory=dict)
    fresh_rows: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    host_rows: dict[int, int] = field(default_factory=dict)
    reason: str | None = None

    @property
    def rows(self) -> int:
        """Rows that are done, good or bad, those of earlier attempts too."""
        return sum(record.rows + record.quarantined for record in self.records.values())

    @property
    def quarantined(self) -> int:
        """Bad rows among them."""
        return sum(record.quarantined for record in self.records.values())

    def found(self, record: Record) -> None:
        """Count a part that an earlier attempt has done."""
        self.records[record.index] = record

    def done(self, part: Done, *, host: int) -> None:
        """Count a part; one that is done twice only once."""
        record = part.record
        self.reason = self.reason or part.reason
        if record.index in self.records:
            return
        self.records[record.index] = record
        fresh = record.rows + record.quarantined
        self.fresh_rows += fresh
        self.host_rows[host] = self.host_rows.get(host, 0) + fresh
        self.tokens += part.tokens
        self.busy_seconds += part.busy_seconds

    def check(self) -> None:
        """Raise once there are too many bad rows.

        Raises:
            DataError: with the reason of one of them.
        """
        if self.quarantined > self.most_bad:
            raise DataError(
                f"{self.quarantined} of {self.rows} rows are bad, more than the {self.most_bad} allowed; "
                f"one of them: {self.reason or 'see _quarantine'}",
                hint="_quarantine in the output has each row's id and reason; output.max_quarantine allows more",
            )

    def progress(self, now: float, *, underway: Mapping[int, int]) -> dict[str, Any]:
        """The fields of a ``rows`` event; ``underway`` are rows done of parts that aren't, by host."""
        seconds = max(1e-9, now - self.started)
        ahead = sum(underway.values())
        done, rate = self.rows + ahead, (self.fresh_rows + ahead) / seconds
        hosts = {host: self.host_rows.get(host, 0) + underway.get(host, 0) for host in {*self.host_rows, *underway}}
        return {
            "done": done,
            "total": self.total,
            "rows_per_second": rate,
            "tokens_per_second": self.tokens / seconds if self.tokens else None,
            "eta_seconds": (self.total - done) / rate if rate else None,
            "quarantined": self.quarantined,
            "host_rows": {str(host): rows for host, rows in sorted(hosts.items())},
        }
