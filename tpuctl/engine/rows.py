"""The rows of a step that tokens are drawn from: one of each sequence, and one after each of its drafts. No jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

from tpuctl.engine.sequence import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Sequence after sequence, in the order of the work, then padding.

    Attributes:
        firsts: Of each sequence, its first row.
        owners: Of each row, the number of its sequence; -1 for padding.
        tokens: Of each row, the token to draw from, in the step's row of tokens.
        positions: Of the token to draw.
        draws: Whether anything is drawn.
    """

    firsts: list[int]
    owners: Int[np.ndarray, " r"]
    tokens: Int32[np.ndarray, " r"]
    positions: Int32[np.ndarray, " r"]
    draws: Bool[np.ndarray, " r"]


def rows_of(work: list[Work], layout: dict[str, Any], *, count: int) -> Rows:
    """The rows of a step, padded to ``count``; ``layout`` has the fields of ``attention.PagedLayout``."""
    each = np.asarray([item.num_rows for item in work], np.int32)
    ends = np.cumsum(each)
    owners = np.repeat(np.arange(len(work)), each)
    behind = (ends[owners] - 1 - np.arange(len(owners))).astype(np.int32)  # drafts that come after a row's token

    def padded(values: np.ndarray, filler: int = 0) -> np.ndarray:
        return np.pad(values, (0, count - len(values)), constant_values=filler)

    return Rows(
        firsts=(ends - each).tolist(),
        owners=padded(owners, -1),
        tokens=padded(layout["starts"][owners + 1] - 1 - behind),
        positions=padded(layout["lengths"][owners] - behind),
        draws=padded(np.asarray([item.draws for item in work], np.bool_)[owners]),
    )
