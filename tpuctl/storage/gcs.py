"""Objects in a bucket, by google-cloud-storage: conditional on generations, checked by crc32c, tried again for a while.

Imported when the first ``gs://`` URI is opened and no sooner, since the client library takes half a second.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
from google.api_core.exceptions import GoogleAPIError, RequestRangeNotSatisfiable
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY

from tpuctl.errors import StorageError
from tpuctl.storage.endpoint import client_env, endpoint
from tpuctl.storage.errors import ChangedError, NotFoundError
from tpuctl.storage.gcs_errors import GOOGLE_ERRORS, explained
from tpuctl.storage.protocol import ABSENT, Blob, Stat
from tpuctl.storage.uri import GCS, split_gcs

RETRY_SECONDS = 120.0
"""How long a call is tried again while the service answers 429 or 5xx, or the connection breaks."""

_TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, and between two bytes
_UPLOAD_CHUNK_BYTES = 32 << 20
_DOWNLOADS = 3


class GcsStorage:
    """Google Cloud Storage. Every answer that may have been lost is looked up before anything is called a failure."""

    def __init__(self, client: Callable[[], storage.Client] | None = None, *, retry: Retry | None = None) -> None:
        self._client = client or process_client
        self._retry = retry or DEFAULT_RETRY.with_timeout(RETRY_SECONDS)

    def read(self, uri: str) -> Blob:
        """The object, its bytes checked against the service's crc32c."""
        blob = self._blob(uri)
        with _google(uri):
            data = _whole(lambda: blob.download_as_bytes(checksum="crc32c", **self._calls()), uri=uri)
        return Blob(data=data, generation=str(blob.generation))

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """Part of the object; nothing vouches for a part but the connection."""
        if end <= start:
            self.stat(uri)
            return b""
        with _google(uri):
            try:
                return bytes(self._blob(uri).download_as_bytes(start=start, end=end - 1, **self._calls()))
            except RequestRangeNotSatisfiable:
                return b""

    def stat(self, uri: str) -> Stat:
        """Size, generation and checksum, in one request."""
        blob = self._blob(uri)
        with _google(uri):
            blob.reload(**self._calls())
        # An object may have none, if it was uploaded in parts that were put together.
        checksum = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
        return Stat(size=blob.size, generation=str(blob.generation), crc32c=checksum)

    def write(self, uri: str, data: bytes, *, if_generation: str | None = None) -> str:
        """Put the object there, in one piece."""
        blob = self._blob(uri)
        try:
            with _google(uri, needs_object=False):
                blob.upload_from_string(
                    data, checksum="crc32c", if_generation_match=_match(if_generation), **self._calls()
                )
        except ChangedError:
            # Perhaps by ourselves: the answer was lost on its way, and the client has sent the object again.
            return self._own_write(uri, data)
        return str(blob.generation)

    def put_file(self, path: Path, uri: str) -> None:
        """Send a file of any size; a connection that breaks is taken up where it broke."""
        blob = self._blob(uri, chunk_size=_UPLOAD_CHUNK_BYTES)
        with _google(uri, needs_object=False):
            blob.upload_from_filename(str(path), checksum="crc32c", **self._calls())

    def get_file(self, uri: str, path: Path) -> None:
        """Fetch an object of any size; ``path`` is there when it is whole and checked."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            blob = self._blob(uri)
            with _google(uri):
                _whole(lambda: blob.download_to_filename(str(part), checksum="crc32c", **self._calls()), uri=uri)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def delete(self, uri: str, *, if_generation: str | None = None) -> None:
        """Remove the object."""
        try:
            with _google(uri):
                self._blob(uri).delete(if_generation_match=_match(if_generation), **self._calls())
        except NotFoundError:
            return

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""
        try:
            self.stat(uri)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[str]:
        """All objects below the directory, a thousand a request; markers of directories are no objects."""
        bucket, name = split_gcs(prefix)
        below = f"{name.rstrip('/')}/" if name.strip("/") else ""
        with _google(prefix, needs_object=False):
            found = self._client().list_blobs(
                bucket, prefix=below, fields="items(name),nextPageToken", page_size=1000, **self._calls()
            )
            for blob in found:
                if not blob.name.endswith("/"):
                    yield f"{GCS}{bucket}/{blob.name}"

    def require_bucket(self, uri: str) -> None:
        """Read the bucket's own description, as the clients that write checkpoints do.

        Raises:
            BucketMissingError: there is none.
            ForbiddenError: ``storage.buckets.get`` is missing.
        """
        bucket, _ = split_gcs(uri)
        with _google(f"{GCS}{bucket}", needs_object=False):
            self._client().get_bucket(bucket, **self._calls())

    def _own_write(self, uri: str, data: bytes) -> str:
        blob = self._blob(uri)
        with _google(uri):
            try:
                blob.reload(**self._calls())
            except GoogleAPIError as error:
                raise ChangedError(f"{uri}: changed meanwhile") from error
        if blob.size != len(data) or blob.crc32c != _crc32c(data):
            raise ChangedError(f"{uri}: changed meanwhile")
        return str(blob.generation)

    def _blob(self, uri: str, **options: Any) -> storage.Blob:
        bucket, name = split_gcs(uri)
        return self._client().bucket(bucket).blob(name, **options)

    def _calls(self) -> dict[str, Any]:
        return {"retry": self._retry, "timeout": _TIMEOUT_SECONDS}


_clients: dict[tuple[int, str | None], storage.Client] = {}
_clients_lock = threading.Lock()


def process_client() -> storage.Client:
    """The client of this process and endpoint. Its connections must never cross a fork, so its key has the pid."""
    key = (os.getpid(), endpoint())
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _new_client(key[1])
        return _clients[key]


def _new_client(at: str | None) -> storage.Client:
    if at is not None:
        os.environ.update(client_env(at))
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        return storage.Client(project="-", credentials=anonymous, client_options={"api_endpoint": at})
    with _google(GCS):
        # Only listing and creating buckets would need a project, which a machine may not know.
        return storage.Client(project=None)


def _whole[T](download: Callable[[], T], *, uri: str) -> T:
    """What ``download`` gives, unless its checksum is wrong every time."""
    for _ in range(_DOWNLOADS):
        try:
            return download()
        except DataCorruption as error:
            failure = error
    raise StorageError(f"{uri}: its bytes arrive damaged: the checksum is not the one on record") from failure


def _match(generation: str | None) -> int | None:
    if generation is None:
        return None
    return 0 if generation == ABSENT else int(generation)


def _crc32c(data: bytes) -> str:
    checksum: bytes = google_crc32c.Checksum(data).digest()  # type: ignore[no-untyped-call]
    return base64.b64encode(checksum).decode()


@contextmanager
def _google(uri: str, *, needs_object: bool = True) -> Iterator[None]:
    try:
        yield
    except GOOGLE_ERRORS as error:
        raise explained(error, uri=uri, needs_object=needs_object) from error
