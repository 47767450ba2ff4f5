"""The three ways to put an object: its bytes as the body, a multipart body with metadata, a session of pieces."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.gcs_emulator_objects import Buckets, Query, Refused, StoredObject
from tests.fakes.gcs_emulator_wire import Hangup, Wire, split_multipart

# What the service keeps of a piece whose connection broke comes in whole units of this.
_UNIT_BYTES = 256 * 1024


@dataclass(kw_only=True)
class Session:
    """A resumable upload under way."""

    bucket: str
    name: str
    query: Query
    metadata: dict[str, Any]
    data: bytearray = field(default_factory=bytearray)
    done: StoredObject | None = None


class Uploads:
    """Takes objects in."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._sessions: dict[str, Session] = {}

    def operation(self, wire: Wire) -> str:
        """What this upload request does, by its query and headers."""
        if "upload_id" in wire.query:
            status = re.match(r"bytes \*/", wire.headers.get("Content-Range", ""))
            return (
                "resumable_status" if status and not int(wire.headers.get("Content-Length") or 0) else "resumable_put"
            )
        kinds = {"media": "insert_media", "multipart": "insert_multipart", "resumable": "resumable_start"}
        return kinds[wire.query["uploadType"]]

    def take(self, wire: Wire, bucket: str) -> None:
        """Serve one upload request."""
        operation = self.operation(wire)
        if operation.startswith("resumable_") and operation != "resumable_start":
            self._continue(wire, self._session(wire.query["upload_id"]))
            return
        self._buckets.of(bucket)
        if operation == "resumable_start":
            self._start(wire, bucket)
            return
        name, data, metadata = _media(wire) if operation == "insert_media" else _multipart(wire)
        if wire.cut_off:
            raise Hangup
        stored = self._buckets.put(bucket, name, data, query=wire.query, metadata=metadata)
        wire.answer(200, stored.document())

    def _start(self, wire: Wire, bucket: str) -> None:
        metadata = wire.json_body()
        number = uuid.uuid4().hex
        self._sessions[number] = Session(
            bucket=bucket,
            name=wire.query.get("name") or metadata["name"],
            query={key: value for key, value in wire.query.items() if key.startswith("if")},
            metadata=metadata,
        )
        place = f"http://{wire.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
        wire.answer(200, headers={"Location": place, "X-GUploader-UploadID": number})

    def _session(self, number: str) -> Session:
        if number not in self._sessions:
            raise Refused(404, "no such upload session")
        return self._sessions[number]

    def _continue(self, wire: Wire, session: Session) -> None:
        piece = wire.body()
        if session.done is not None:
            wire.answer(200, session.done.document())
            return
        start, total = _content_range(wire.headers.get("Content-Range"), session=session, piece=piece)
        if start > len(session.data):
            raise Refused(400, f"piece starts at {start}, {len(session.data)} bytes are here")
        fresh = piece[len(session.data) - start :] if piece else b""
        if wire.cut_off:
            session.data += fresh[: len(fresh) // _UNIT_BYTES * _UNIT_BYTES]
            raise Hangup
        session.data += fresh
        if total is None or len(session.data) < total:
            kept = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            wire.answer(308, headers=kept)
            return
        metadata = {**session.metadata, **_declared(wire.headers)}
        session.done = self._buckets.put(
            session.bucket, session.name, bytes(session.data), query=session.query, metadata=metadata
        )
        wire.answer(200, session.done.document())


def _media(wire: Wire) -> tuple[str, bytes, dict[str, Any]]:
    metadata = {"contentType": wire.headers.get("Content-Type"), **_declared(wire.headers)}
    return wire.query["name"], wire.body(), metadata


def _multipart(wire: Wire) -> tuple[str, bytes, dict[str, Any]]:
    body = wire.body()
    if wire.cut_off:
        raise Hangup
    parts = split_multipart(body, wire.headers.get("Content-Type", ""))
    if len(parts) != 2:
        raise Refused(400, f"a multipart upload has two parts, this one {len(parts)}")
    metadata = json.loads(parts[0][1] or b"{}")
    return wire.query.get("name") or metadata["name"], parts[1][1], metadata


def _content_range(header: str | None, *, session: Session, piece: bytes) -> tuple[int, int | None]:
    """Where the piece starts, and the object's size if it is known."""
    if header is None:
        return len(session.data), len(session.data) + len(piece)
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", header)
    if found is None:
        raise Refused(400, f"invalid Content-Range {header}")
    start = int(found[1]) if found[1] else len(session.data)
    return start, None if found[2] == "*" else int(found[2])


def _declared(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksums that a client put into a header."""
    pairs = dict(pair.strip().split("=", 1) for pair in headers.get("X-Goog-Hash", "").split(",") if "=" in pair)
    named = {"crc32c": pairs.get("crc32c"), "md5Hash": pairs.get("md5")}
    return {key: value for key, value in named.items() if value}
