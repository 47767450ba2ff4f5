"""HTTP/1.1 as the Google clients speak it: bodies of every kind in, answers out, with the faults of the wire."""

from __future__ import annotations

import gzip
import http.server
import json
import re
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.gcs_emulator_faults import NO_FAULT, Fault
from tests.fakes.gcs_emulator_objects import Refused

Headers = Mapping[str, str]


class Hangup(Exception):
    """The connection is to be closed without an answer."""


class Wire(http.server.BaseHTTPRequestHandler):
    """One connection. ``query`` and ``fault`` are those of the request at hand; ``received`` is false until its body
    was read."""

    protocol_version = "HTTP/1.1"
    server_version = "emulator"
    disable_nagle_algorithm = True
    timeout = 120
    wbufsize = 1 << 16

    query: dict[str, str]
    fault: Fault = NO_FAULT
    received = False

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def begin(self) -> list[str]:
        """Read the request's line: fills ``query`` and gives the path's parts, still quoted."""
        split = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(split.query, keep_blank_values=True).items()}
        self.fault, self.received = NO_FAULT, False
        return split.path.split("/")[1:]

    def body(self) -> bytes:
        """The request's body, or what came of it before the client went away or a fault cut it off."""
        self.received = True
        data = self._chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else self._plain()
        limit = self.fault.accept_bytes
        return data if limit is None else data[:limit]

    @property
    def cut_off(self) -> bool:
        """Whether the connection is to break after the body."""
        return self.fault.accept_bytes is not None

    def json_body(self) -> dict[str, Any]:
        """The request's body as JSON."""
        data = self.body()
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        document: dict[str, Any] = json.loads(data or b"{}")
        return document

    def answer(self, status: int, body: bytes | dict[str, Any] = b"", *, headers: Headers | None = None) -> None:
        """Send an answer, unless the fault loses it."""
        if self.fault.lost_reply:
            raise Hangup
        kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for key, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self._send(data)

    def refuse(self, error: Refused) -> None:
        """Send an error."""
        if not self.received:
            self.body()
        self.fault = NO_FAULT
        headers = {"Retry-After": "0"} if error.status in (429, 503) else {}
        self.answer(error.status, b"" if error.status == 304 else error.document(), headers=headers)

    def suffer(self) -> None:
        """The faults that come before any work."""
        if self.fault.delay_seconds:
            time.sleep(self.fault.delay_seconds)
        if self.fault.reset:
            raise Hangup
        if self.fault.status is not None:
            raise Refused(self.fault.status, self.fault.message)

    def _send(self, data: bytes) -> None:
        if self.fault.corrupt and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        cut = self.fault.truncate_at
        self.wfile.write(data if cut is None else data[:cut])
        self.wfile.flush()
        if cut is not None and cut < len(data):
            self.connection.shutdown(socket.SHUT_RDWR)
            raise Hangup

    def _plain(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size) if size else b""
        if len(data) < size:
            raise Hangup
        return data

    def _chunked(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def split_multipart(data: bytes, content_type: str) -> list[tuple[dict[str, str], bytes]]:
    """Headers and body of each part. Some clients end lines with LF only, so the ``email`` package would not do."""
    found = re.search(r"boundary=(?:\"([^\"]+)\"|'([^']+)'|([^;]+))", content_type)
    if found is None:
        raise Refused(400, "no multipart boundary")
    boundary = b"--" + next(group for group in found.groups() if group).strip().encode()
    if data.rstrip(b"\r\n-").endswith(boundary.rstrip(b"-")) is False:
        raise Refused(400, "multipart body is truncated")
    parts = []
    for piece in re.split(rb"(?:^|\r?\n)" + re.escape(boundary) + rb"(?:--)?[ \t]*\r?\n?", data)[1:]:
        if not piece:
            continue
        head, separator, body = _split_head(piece)
        if not separator:
            raise Refused(400, "malformed part")
        lines = [line.partition(":") for line in head.decode().splitlines() if ":" in line]
        parts.append(({key.strip().lower(): value.strip() for key, _, value in lines}, body))
    return parts


def _split_head(piece: bytes) -> tuple[bytes, bytes, bytes]:
    if piece.startswith((b"\r\n", b"\n")):
        return b"", b"\n", piece.partition(b"\n")[2]
    found = re.search(rb"\r?\n\r?\n", piece)
    return (piece, b"", b"") if found is None else (piece[: found.start()], b"\n", piece[found.end() :])
