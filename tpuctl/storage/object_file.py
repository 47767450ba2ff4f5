"""An object in a bucket as a file for reading here and there, as parquet readers do."""

from __future__ import annotations

import io

from tpuctl.storage import open_storage


class ObjectFile(io.RawIOBase):
    """The object at ``uri``, opened for reading. Each read is one request, so readers should ask for much at once.

    Arrow's own filesystem would do the same, but its reads from a bucket hold Python's interpreter lock until the
    answer is there (pyarrow 26), so that threads wait for one another instead of for the bucket. Opening and reading
    raise as ``Storage.stat`` and ``Storage.read_range`` do.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._storage = open_storage(uri)
        self._size = self._storage.stat(uri).size
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place; costs nothing."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; all that are left where ``size`` is none or negative."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        data = self._storage.read_range(self._uri, self._at, end) if end > self._at else b""
        self._at += len(data)
        return data
