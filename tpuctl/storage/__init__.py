"""Bytes at a URI: local paths and gs:// behind one small interface. Knows nothing of what the bytes mean.

Every object has a generation: a text that changes when the object does. A write or delete may be made conditional on
it, which is what a lease stands on; whoever guards something writes a token of its own into it, so that no two writers
ever write the same. The room knows all there is to know of endpoints and credentials, and imports no client library
before it is asked for a bucket.
"""

from __future__ import annotations

from tpuctl.errors import StorageError
from tpuctl.storage.endpoint import ENDPOINT_VARIABLE, client_env
from tpuctl.storage.errors import (
    BucketMissingError,
    ChangedError,
    ForbiddenError,
    NotFoundError,
    UnreachableStorageError,
)
from tpuctl.storage.local import LocalStorage
from tpuctl.storage.protocol import ABSENT, Blob, Stat, Storage
from tpuctl.storage.uri import is_gcs, join

__all__ = [
    "ABSENT",
    "ENDPOINT_VARIABLE",
    "Blob",
    "BucketMissingError",
    "ChangedError",
    "ForbiddenError",
    "LocalStorage",
    "NotFoundError",
    "Stat",
    "Storage",
    "UnreachableStorageError",
    "client_env",
    "is_gcs",
    "join",
    "open_storage",
]


def open_storage(uri: str) -> Storage:
    """The storage that holds ``uri``.

    Raises:
        StorageError: a scheme this version can't serve.
    """
    scheme, mark, _ = uri.partition("://")
    if not mark or scheme == "file":
        return LocalStorage()
    if scheme == "gs":
        return _gcs()
    raise StorageError(f"{uri}: no storage for {scheme}://", hint="use an absolute path or gs://bucket/path")


def _gcs() -> Storage:
    from tpuctl.storage.gcs import GcsStorage

    return GcsStorage()
