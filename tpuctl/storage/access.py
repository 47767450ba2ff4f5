"""Whether this machine may do what a run will do, found out by doing it once on a small object of no meaning."""

from __future__ import annotations

import uuid

from tpuctl.storage import ABSENT, is_gcs, join, open_storage
from tpuctl.storage.errors import ForbiddenError

_PROBE = ".probe"


def require_writable(directory: str) -> None:
    """Write an object below ``directory``, read and delete it; in a bucket, list it and read the bucket's description.

    Raises:
        BucketMissingError: there is no such bucket.
        ForbiddenError: a right is missing; names it.
        StorageError: it can't be reached, or is no place to write to.
    """
    storage = open_storage(directory)
    folder = join(directory, f"{_PROBE}-{uuid.uuid4().hex}") if is_gcs(directory) else directory
    uri = join(folder, f"{_PROBE}-{uuid.uuid4().hex}")
    storage.write(uri, uri.encode(), if_generation=ABSENT)
    storage.read(uri)
    if is_gcs(directory):
        list(storage.list(folder))
        _require_bucket(directory)
    storage.delete(uri)


def _require_bucket(uri: str) -> None:
    from tpuctl.storage.gcs import GcsStorage

    try:
        GcsStorage().require_bucket(uri)
    except ForbiddenError as error:
        raise ForbiddenError(f"{error.message}; Orbax asks for it before it saves", hint=error.hint) from error
