"""What a task is to the rest of the room: rows in, new columns for the good ones and reasons for the bad ones out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class Worked:
    """What became of some rows.

    ``columns`` are the new ones, a row for each number in ``good``; ``bad`` has the number and the reason of each other
    row. Both are in ascending order and numbers count from 0 within the rows given. ``busy_seconds`` is how long the
    devices were at it.
    """

    columns: pa.Table
    good: np.ndarray
    bad: tuple[tuple[int, str], ...]
    tokens: int = 0
    busy_seconds: float = 0.0


Tell = Callable[[float], None]
"""Is told of so many rows more that are done; of one at several texts, of parts of it."""


def tell_nobody(rows: float) -> None:
    """A ``Tell`` for who doesn't want to know."""


class Task(Protocol):
    """Work on rows. May be called from several threads; what must not happen side by side it guards itself."""

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """The new columns of these rows. A row that can't be worked on is a bad one, never an exception.

        A task that takes long tells of rows while it is at them.

        Raises:
            TpuctlError: no row can be worked on.
        """
