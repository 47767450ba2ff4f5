"""Buckets as a pyarrow filesystem, to be passed explicitly: it carries its endpoint to wherever it is unpickled."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from tpuctl.storage.endpoint import endpoint
from tpuctl.storage.uri import GCS, is_gcs

_RETRY_LIMIT = timedelta(seconds=120)  # Arrow's own is a quarter of an hour


def arrow_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem that holds ``uri``, and its path there."""
    if not is_gcs(uri):
        return fs.LocalFileSystem(), str(Path(uri.removeprefix("file://")).absolute())
    return _gcs(endpoint(), os.getpid()), uri.removeprefix(GCS)


@lru_cache(maxsize=8)
def _gcs(at: str | None, _pid: int) -> fs.GcsFileSystem:
    if at is None:
        return fs.GcsFileSystem(retry_time_limit=_RETRY_LIMIT)
    split = urlsplit(at)
    return fs.GcsFileSystem(
        anonymous=True, scheme=split.scheme, endpoint_override=split.netloc, retry_time_limit=_RETRY_LIMIT
    )
