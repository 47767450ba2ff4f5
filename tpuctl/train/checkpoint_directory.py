"""The directory of a run's checkpoints: which steps in it are complete, and what the rest is.

A step is complete when its directory has a plain number as name and holds the marker that Orbax writes last.
Anything else is never read. It is deleted only when it is certainly our own unfinished work; a directory that
may be somebody's copy of a checkpoint is moved aside, at the earliest when its number is needed.

Reads names and small JSON files only, through the paths Orbax writes by, and imports no Orbax.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from etils import epath

COMMIT_MARKER = "commit_success.txt"
STEP_METADATA = "_CHECKPOINT_METADATA"
TEMPORARY_MARK = ".orbax-checkpoint-tmp"
ASIDE_SUFFIX = ".no-marker"


class Condition(Enum):
    """What a directory of a step is worth."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    UNMARKED = "unmarked"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDirectory:
    """One directory that stands for a step, and its condition."""

    step: int
    path: epath.Path
    condition: Condition

    @property
    def explanation(self) -> str:
        """Why an incomplete directory is passed over, and what its owner can do."""
        if self.condition is Condition.UNFINISHED:
            return f"ignoring {self.path}: its save never finished"
        return (
            f"ignoring {self.path}: no commit marker; if it is a complete copy of a checkpoint, "
            f"create the file {self.path / COMMIT_MARKER} and start again"
        )


def scan(directory: epath.Path) -> list[StepDirectory]:
    """All directories that stand for a step, in the numeric order of their steps."""
    if not directory.exists():
        return []
    found = [item for path in directory.iterdir() if (item := _step_directory(path)) is not None]
    return sorted(found, key=lambda item: (item.step, item.path.name))


def complete_steps(found: list[StepDirectory]) -> list[int]:
    """The complete steps of a scan, ascending."""
    return [item.step for item in found if item.condition is Condition.COMPLETE]


def passed_over(found: list[StepDirectory], latest: int | None) -> list[str]:
    """Why what looks newer than the newest complete step is not taken."""
    return [
        item.explanation
        for item in found
        if item.condition is not Condition.COMPLETE and (latest is None or item.step > latest)
    ]


def read_step_metadata(directory: epath.Path, step: int) -> dict[str, Any]:
    """What was recorded beside the arrays of a step; empty where there is nothing readable."""
    return _read_json(directory / str(step) / STEP_METADATA)


def remove_leftovers(directory: epath.Path) -> None:
    """Delete what killed saves left under temporary names."""
    for item in scan(directory):
        if TEMPORARY_MARK in item.path.name:
            item.path.rmtree()


def remove(directory: epath.Path, step: int) -> None:
    """Delete a complete step. Its marker goes first, so that what a crash leaves of it is never read."""
    path = directory / str(step)
    (path / COMMIT_MARKER).unlink(missing_ok=True)
    path.rmtree()


def clear_way(directory: epath.Path, step: int) -> str | None:
    """Make the name of ``step`` free for a save; says so if something had to be moved."""
    # Looks at this one name only: a save is held up by every request that is made here.
    found = _step_directory(directory / str(step))
    if found is None or found.condition is Condition.COMPLETE:
        return None
    path = found.path
    if found.condition is Condition.UNFINISHED:
        path.rmtree()
        return None
    aside = next(
        place
        for number in range(1, 1_000_000)
        if not (place := path.parent / f"{path.name}{ASIDE_SUFFIX}-{number}").exists()
    )
    path.rename(aside)
    return f"moved {path}, which has no commit marker, to {aside} to save step {step}"


def _step_directory(path: epath.Path) -> StepDirectory | None:
    name, mark, _ = path.name.partition(TEMPORARY_MARK)
    if not (name.isascii() and name.isdigit()) or name != str(int(name)) or not path.is_dir():
        return None
    condition = Condition.UNFINISHED if mark else _condition(path)
    return StepDirectory(step=int(name), path=path, condition=condition)


def _condition(path: epath.Path) -> Condition:
    if (path / COMMIT_MARKER).exists():
        return Condition.COMPLETE
    metadata = _read_json(path / STEP_METADATA)
    # Only a save that is under way has a start and no end: where directories can't be renamed (gs://)
    # it is written in place, and looks like a copy without its marker but for this.
    begun, ended = metadata.get("init_timestamp_nsecs"), metadata.get("commit_timestamp_nsecs")
    return Condition.UNFINISHED if begun and not ended else Condition.UNMARKED


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
