"""The error tree. Each class holds the exit code it leads to and the hint that goes with it.

Deep code raises these with facts; only the CLI's border (``cli.app``) turns them into words on a terminal.
Imports nothing of tpuctl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What the shell sees. The numbers are part of the CLI's contract."""

    DONE = 0
    JOB_FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    EXPECTATION_MISSED = 4
    DETACHED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """A place in a file the user wrote: the recipe, or the ``--set`` option that overrode it."""

    file: str
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return place if self.key is None else f"{place}: {self.key}"


class TpuctlError(Exception):
    """Anything tpuctl can explain. ``hint`` says what to do; ``exit_code`` what the shell gets."""

    exit_code: ExitCode = ExitCode.JOB_FAILED

    def __init__(self, message: str, *, hint: str | None = None, where: Where | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process border whole, whatever the class's own constructor asks for."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class UsageError(TpuctlError):
    """The command line or a name on it is wrong."""

    exit_code = ExitCode.USAGE


class RecipeError(UsageError):
    """The recipe is wrong; ``where`` names file, line and key. Where several things are, each is one of ``parts``."""

    def __init__(
        self, message: str, *, hint: str | None = None, where: Where | None = None, parts: Sequence[RecipeError] = ()
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.parts = tuple(parts)


class TopologyError(UsageError):
    """No such slice, or a name that fits several."""


class DataError(TpuctlError):
    """The dataset can't be read as the recipe says; names the file and column."""


class WeightsError(TpuctlError):
    """A model's folder or its weights are missing, damaged or another model's; names the file and the tensors."""


class StorageError(TpuctlError):
    """A path or bucket can't be read or written."""


class OutputError(TpuctlError):
    """The output folder holds what this job must neither use nor delete."""


class ClusterError(TpuctlError):
    """The cluster can't be reached or refuses us."""

    exit_code = ExitCode.UNAVAILABLE


class CapacityError(ClusterError):
    """No intact idle slice of the asked-for shape; the message lists every candidate and why not."""


class JobNotFoundError(UsageError):
    """No job of that id on the cluster."""


class JobFailedError(TpuctlError):
    """The job ended without success."""


class HostLostError(JobFailedError):
    """A host of a slice is gone, and with it what all of them were at; starting all of them again may help."""


class RunInUseError(TpuctlError):
    """Another job holds the lease of the run directory."""

    exit_code = ExitCode.UNAVAILABLE


class CheckpointError(TpuctlError):
    """A checkpoint could not be saved, found or restored."""


class ExpectationError(TpuctlError):
    """The job ended well but missed a gate of the recipe's ``[expect]`` table."""

    exit_code = ExitCode.EXPECTATION_MISSED


def _rebuilt(kind: type[TpuctlError], args: tuple[Any, ...], state: dict[str, Any]) -> TpuctlError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error
