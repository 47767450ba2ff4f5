"""Google Cloud Storage for tests, on loopback: the JSON API as four client libraries use it, in this process.

Written from the service's public documentation. It has generations, preconditions, checksums, pages, the three kinds
of upload, copies, the token paths of the machine metadata server, and faults. It has no
versioning, no access control, no batches and no gRPC. As a command it serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import quote, unquote

from tests.fakes.gcs_emulator_faults import Faults, Tally
from tests.fakes.gcs_emulator_objects import Buckets, Refused, StoredObject
from tests.fakes.gcs_emulator_uploads import Uploads
from tests.fakes.gcs_emulator_wire import Hangup, Wire


class Emulator(ThreadingHTTPServer):
    """The service. ``token_seconds``: ask for a bearer token that its metadata server gave out, and for how long it
    is good; None: everybody may do everything."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *, port: int = 0, token_seconds: float | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Service)
        self.buckets = Buckets()
        self.uploads = Uploads(self.buckets)
        self.faults = Faults()
        self.tally = Tally()
        self.token_seconds = token_seconds
        self.tokens: dict[str, float] = {}

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def new_token(self) -> dict[str, Any]:
        """A token as the metadata server answers it."""
        good_for = 3600.0 if self.token_seconds is None else self.token_seconds
        token = f"token-{len(self.tokens)}"
        self.tokens[token] = time.monotonic() + good_for
        return {"access_token": token, "expires_in": int(good_for), "token_type": "Bearer"}

    def check(self, authorization: str | None) -> None:
        """Refuse a request without a good token, where one is needed."""
        token = (authorization or "").removeprefix("Bearer ")
        if self.token_seconds is not None and self.tokens.get(token, 0.0) < time.monotonic():
            raise Refused(401, "Invalid Credentials")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are no error of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError | socket.timeout):
            super().handle_error(request, client_address)


@contextmanager
def emulator(*buckets: str, port: int = 0, token_seconds: float | None = None) -> Iterator[Emulator]:
    """A running emulator with these buckets."""
    server = Emulator(port=port, token_seconds=token_seconds)
    for bucket in buckets:
        server.buckets.create(bucket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


Handler = tuple[str, str, Callable[[], None]]


class _Service(Wire):
    @property
    def _emulator(self) -> Emulator:
        return cast(Emulator, self.server)

    def serve(self) -> None:
        """One request, from its first line to its answer."""
        parts = self.begin()
        try:
            operation, name, work = self._route(parts)
            self._emulator.tally.count(operation)
            self.fault = self._emulator.faults.pick(operation, name)
            self.suffer()
            if operation != "metadata":
                self._emulator.check(self.headers.get("Authorization"))
            work()
        except Refused as error:
            self.refuse(error)
        except (Hangup, ConnectionError, TimeoutError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = serve

    def _route(self, parts: list[str]) -> Handler:
        """The operation, ``bucket/object`` and the work of a request."""
        path = "/".join(parts)
        if path in ("", "token") or parts[0] == "computeMetadata":
            return "metadata", "", self._metadata
        if found := re.fullmatch(r"(?:upload|resumable/upload)/storage/v1/b/([^/]+)/o", path):
            bucket = unquote(found[1])
            return (
                self._emulator.uploads.operation(self),
                f"{bucket}/{self.query.get('name', '')}",
                (lambda: self._emulator.uploads.take(self, bucket)),
            )
        if found := re.fullmatch(r"(?:download/)?storage/v1/b/([^/]+)/o/(.+)", path):
            return self._object(unquote(found[1]), found[2].split("/"))
        if found := re.fullmatch(r"storage/v1/b/([^/]+)(/o/?|/storageLayout)?", path):
            return self._bucket(unquote(found[1]), found[2] or "")
        if self.command in ("GET", "HEAD") and len(parts) > 1:  # the XML API's read
            bucket, name = unquote(parts[0]), unquote("/".join(parts[1:]))
            return "read", f"{bucket}/{name}", lambda: self._read(bucket, name)
        raise Refused(501, f"the emulator has no {self.command} {path}")

    def _bucket(self, bucket: str, rest: str) -> Handler:
        if rest.startswith("/o"):
            return "list", bucket, lambda: self.answer(200, self._emulator.buckets.list(bucket, self.query))
        document = {"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "US", "locationType": "region"}
        if rest:
            document = {"kind": "storage#storageLayout", "bucket": bucket, "location": "US", "locationType": "region"}

        def work() -> None:
            self._emulator.buckets.of(bucket)
            self.answer(200, {**document, "hierarchicalNamespace": {"enabled": False}, "storageClass": "STANDARD"})

        return "bucket", bucket, work

    def _object(self, bucket: str, quoted: list[str]) -> Handler:
        """Clients quote a slash in a name, so a plain one begins what is to be done with the object."""
        name = unquote(quoted[0])
        if len(quoted) > 3 and quoted[1] == "moveTo":
            there = unquote("/".join(quoted[3:]))
            return "move", f"{bucket}/{name}", lambda: self._move(bucket, name, there)
        if len(quoted) > 5 and quoted[1] in ("rewriteTo", "copyTo"):
            to = (unquote(quoted[3]), unquote("/".join(quoted[5:])))
            return "copy", f"{bucket}/{name}", lambda: self._copy(self._get(bucket, name), to)
        name = unquote("/".join(quoted))
        label = f"{bucket}/{name}"
        if self.command == "DELETE":
            return "delete", label, lambda: self._delete(bucket, name)
        if self.query.get("alt") == "media":
            return "read", label, lambda: self._read(bucket, name)
        return "stat", label, lambda: self.answer(200, self._described(self._get(bucket, name)))

    def _get(self, bucket: str, name: str) -> StoredObject:
        return self._emulator.buckets.get(bucket, name, self.query)

    def _described(self, found: StoredObject) -> dict[str, Any]:
        link = f"http://{self.headers['Host']}/download/storage/v1/b/{found.bucket}/o/{quote(found.name, safe='')}"
        return {**found.document(), "mediaLink": f"{link}?generation={found.generation}&alt=media"}

    def _delete(self, bucket: str, name: str) -> None:
        self._emulator.buckets.delete(bucket, name, self.query)
        self.answer(204)

    def _move(self, bucket: str, name: str, to: str) -> None:
        self.body()
        moved = self._emulator.buckets.copy(self._get(bucket, name), bucket, to, self.query)
        self._emulator.buckets.delete(bucket, name, {})
        self.answer(200, moved.document())

    def _copy(self, source: StoredObject, to: tuple[str, str]) -> None:
        self.body()
        document = self._emulator.buckets.copy(source, *to, self.query).document()
        size = document["size"]
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        self.answer(200, {**done, "resource": document} if "/rewriteTo/" in self.path else document)

    def _read(self, bucket: str, name: str) -> None:
        found = self._get(bucket, name)
        size = len(found.data)
        start, end = 0, size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked:
            start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
            end = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
            if start >= end:
                self.answer(416, headers={"Content-Range": f"bytes */{size}"})
                return
        headers = {
            "ETag": found.document()["etag"],
            "Last-Modified": formatdate(usegmt=True),
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Metageneration": "1",
            "X-Goog-Hash": f"crc32c={found.crc32c},md5={found.md5}",
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Storage-Class": "STANDARD",
        }
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.answer(206 if asked else 200, found.data[start:end], headers=headers)

    def _metadata(self) -> None:
        """The paths of a virtual machine's metadata server that clients walk to get a token."""
        flavor = {"Metadata-Flavor": "Google"}
        path = self.path.partition("?")[0]
        account = {
            "email": "tpu@test.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        }
        if path.endswith("/token"):
            self.body()
            self.answer(200, self._emulator.new_token(), headers=flavor)
        elif path.endswith(("/project-id", "/email", "/universe-domain", "/universe_domain")):
            words = {"project-id": b"test", "email": account["email"].encode()}  # type: ignore[attr-defined]
            self.answer(200, words.get(path.rpartition("/")[2], b"googleapis.com"), headers=flavor)
        elif "service-accounts" in path:
            one = path.rstrip("/").rpartition("/")[2] != "service-accounts"
            self.answer(200, account if one else {"default": account}, headers=flavor)
        else:
            self.answer(200, b"computeMetadata/\n", headers=flavor)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve an empty Google Cloud Storage on loopback.")
    parser.add_argument("bucket", nargs="+")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with emulator(*given.bucket, port=given.port) as server:
        print(server.endpoint, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
