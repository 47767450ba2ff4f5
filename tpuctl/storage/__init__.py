"""Bytes at a URI: local paths and gs:// behind one small interface. Knows nothing of what the bytes mean.

Every object has a generation: a text that changes when the object does. A write or delete may be made conditional on
it, which is what a lease stands on; whoever guards something writes a token of its own into it, so that no two writers
ever write the same. The room knows all there is to know of endpoints and credentials, and imports no client library
before it is asked for a bucket.
"""

from __future__ import annotations

from tpuctl.errors import StorageError
from tpuctl.storage.errors import ChangedError, NotFoundError
from tpuctl.storage.local import LocalStorage
from tpuctl.storage.protocol import ABSENT, Blob, Stat, Storage
from tpuctl.storage.uri import join

__all__ = [
    "ABSENT",
    "Blob",
    "ChangedError",
    "LocalStorage",
    "NotFoundError",
    "Stat",
    "Storage",
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
        raise StorageError(f"{uri}: gs:// is not supported in this version", hint="use a path that all hosts share")
    raise StorageError(f"{uri}: no storage for {scheme}://", hint="use an absolute path")
