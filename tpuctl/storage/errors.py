"""What can go wrong with an object. Whatever the storage, callers meet these and no library's own."""

from __future__ import annotations

from tpuctl.errors import StorageError


class NotFoundError(StorageError):
    """There is no such object."""


class ChangedError(StorageError):
    """The object is not at the generation the caller knew."""
