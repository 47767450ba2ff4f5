"""What can go wrong with an object. Whatever the storage, callers meet these and no library's own."""

from __future__ import annotations

from tpuctl.errors import ExitCode, StorageError


class NotFoundError(StorageError):
    """There is no such object."""


class BucketMissingError(StorageError):
    """There is no such bucket. No ``NotFoundError``: what isn't there yet can be written, but not here."""

    exit_code = ExitCode.USAGE


class ChangedError(StorageError):
    """The object is not at the generation the caller knew."""


class ForbiddenError(StorageError):
    """The account we run as lacks a right; the message names it where the storage does."""

    exit_code = ExitCode.USAGE


class UnreachableStorageError(StorageError):
    """The storage could not be reached, or kept failing for as long as we try again."""

    exit_code = ExitCode.UNAVAILABLE
