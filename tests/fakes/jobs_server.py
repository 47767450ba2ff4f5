"""A Ray dashboard's Jobs API over real sockets, that misbehaves on command.

It speaks the HTTP and websocket that Ray 2.60's server speaks (paths, status codes, texts), written by hand so that a
test can break any of it: cut a connection, cut a character, send bytes that are no text, replay too little, say
nothing, refuse, forget the token, not be there for a while.

    with JobsServer() as server:
        job = server.add_job("run-1", log=b"one\\n")
        job.streams = [Stream(send_bytes=4, then="drop")]
        ...
        job.print(b"two\\n")
        job.end("SUCCEEDED")
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TERMINAL = ("STOPPED", "SUCCEEDED", "FAILED")
What = Literal["version", "status", "logs", "tail", "submit", "stop", "list", "package", "raw_log", "any"]


@dataclass(kw_only=True)
class Stream:
    """How one websocket behaves. The default is honest: the whole log, then what is added, until the job ends."""

    last_lines: int | None = None  # replay only so many lines
    from_now: bool = False  # replay nothing
    send_bytes: int | None = None  # then stop, after so many bytes
    then: Literal["drop", "close", "stall"] = "close"
    message_bytes: int = 1 << 30  # cut the log into messages of this size, wherever that falls


@dataclass(kw_only=True)
class Fault:
    """An answer instead of the right one, for the next ``times`` requests of a kind."""

    what: What
    status: int = 500
    body: str = "Internal Server Error"
    times: int = 1
    hang_up: bool = False


@dataclass(kw_only=True)
class FakeJob:
    """A job whose state the test holds in its hands."""

    submission_id: str
    log: bytearray = field(default_factory=bytearray)
    status: str = "RUNNING"
    message: str | None = None
    error_type: str | None = None
    driver_exit_code: int | None = None
    entrypoint: str = "python -m x"
    metadata: dict[str, str] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)  # told one by one before the true one
    end_when_stopped: str | None = "STOPPED"
    start_time: int = 1_700_000_000_000
    end_time: int | None = None
    status_asked: int = 0
    streams_opened: int = 0
    logs_asked: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def print(self, text: bytes) -> None:
        """Add to the log."""
        with self.changed:
            self.log += text
            self.changed.notify_all()

    def end(self, status: str, **fields: Any) -> None:
        """Go to a terminal state."""
        with self.changed:
            self.status = status
            self.end_time = self.start_time + 5000
            for name, value in fields.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def wait_for_stream(self, count: int = 1, timeout: float = 10.0) -> None:
        """Until so many websockets have been opened; fails the test if they are not."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.streams_opened >= count, timeout), "no stream was opened"

    @property
    def terminal(self) -> bool:
        return self.status in _TERMINAL

    def document(self) -> dict[str, Any]:
        status = self.statuses.pop(0) if self.statuses else self.status
        return {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": self.submission_id,
            "driver_info": None,
            "status": status,
            "entrypoint": self.entrypoint,
            "message": self.message or f"Job is {status}.",
            "error_type": self.error_type,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "metadata": self.metadata,
            "runtime_env": self.runtime_env,
            "driver_agent_http_address": "http://127.0.0.1:52365",
            "driver_node_id": "0" * 56,
            "driver_exit_code": self.driver_exit_code,
        }


class JobsServer:
    """The server; use it in a ``with``. ``url`` is where it listens."""

    def __init__(self, *, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, FakeJob] = {}
        self.packages: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.package_limit = 100 * 1024**2
        self.lock = threading.Lock()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._sockets: set[socket.socket] = set()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def add_job(self, submission_id: str, *, log: bytes = b"", **fields: Any) -> FakeJob:
        job = FakeJob(submission_id=submission_id, log=bytearray(log), **fields)
        self.jobs[submission_id] = job
        return job

    def fail(self, what: What, **fields: Any) -> None:
        """Answer the next requests of a kind wrongly."""
        self.faults.append(Fault(what=what, **fields))

    def start(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Listen no more, and cut every connection: what a restarting head looks like."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        for connection in list(self._sockets):
            _cut(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def stopped(self) -> bool:
        return self._server is None

    def take_fault(self, what: What) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.what in (what, "any"):
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                    return fault
        return None

    def submit(self, document: dict[str, Any]) -> FakeJob | None:
        """Start a job unless its id is taken; Ray checks and sets in one step, so two can't both win."""
        with self.lock:
            submission_id = document["submission_id"]
            if submission_id in self.jobs:
                return None
            fields = {key: document.get(key) or {} for key in ("metadata", "runtime_env")}
            return self.add_job(submission_id, entrypoint=document["entrypoint"], **fields)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections are cut on purpose here


class _Handler(BaseHTTPRequestHandler):
    fake: JobsServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.fake._sockets.add(self.connection)

    def finish(self) -> None:
        self.fake._sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def do_DELETE(self) -> None:
        self._route("DELETE")

    def _route(self, method: str) -> None:
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.fake.requests.append((method, path))
        if self.fake.token and self.headers.get("Authorization") != f"Bearer {self.fake.token}":
            given = self.headers.get("Authorization")
            self._answer(403, "Forbidden: Invalid authentication token") if given else self._answer(
                401, "Unauthorized: Missing authentication token"
            )
            return
        what, found = _recognise(method, self.path)
        fault = self.fake.take_fault(what)
        if fault is not None:
            _cut(self.connection) if fault.hang_up else self._answer(fault.status, fault.body)
            return
        if what == "any":
            self._answer(404, "404: Not Found")
        else:
            getattr(self, f"_{what}")(found, body)

    def _version(self, _: str, __: bytes) -> None:
        self._json({"version": "4", "ray_version": "2.60.0", "ray_commit": "0", "session_name": "fake"})

    def _list(self, _: str, __: bytes) -> None:
        self._json([job.document() for job in self.fake.jobs.values()])

    def _status(self, submission_id: str, _: bytes) -> None:
        if job := self._job(submission_id):
            job.status_asked += 1
            self._json(job.document())

    def _logs(self, submission_id: str, _: bytes) -> None:
        if job := self._job(submission_id):
            job.logs_asked += 1
            # Raw bytes inside the JSON, as no well-behaved server would: the client must live with it.
            escaped = bytes(job.log).decode("latin-1")
            text = json.dumps(escaped, ensure_ascii=False).encode("latin-1")
            self._answer(200, b'{"logs": ' + text + b"}", "application/json")

    def _raw_log(self, submission_id: str, _: bytes) -> None:
        if job := self._job(submission_id):
            self._answer(200, bytes(job.log))

    def _submit(self, _: str, body: bytes) -> None:
        document = json.loads(body)
        if self.fake.submit(document) is None:
            text = f"ValueError: Job with submission_id {document['submission_id']} already exists. "
            self._answer(500, f"Traceback (most recent call last):\nRuntimeError: status code 400: {text}")
        else:
            self._json({"job_id": document["submission_id"], "submission_id": document["submission_id"]})

    def _stop(self, submission_id: str, _: bytes) -> None:
        if job := self._job(submission_id):
            running = not job.terminal
            self._json({"stopped": running})
            if running and job.end_when_stopped:
                job.end(job.end_when_stopped)

    def _package(self, name: str, body: bytes) -> None:
        if self.command == "PUT":
            if len(body) >= self.fake.package_limit:
                self._answer(413, f"Maximum request body size {self.fake.package_limit} exceeded")
                return
            self.fake.packages[name] = body
            self._answer(200, "")
        elif name in self.fake.packages:
            self._answer(200, "")
        else:
            self._answer(404, f"Package {name} does not exist")

    def _tail(self, submission_id: str, _: bytes) -> None:
        job = self._job(submission_id)
        if job is None:
            return
        key = self.headers["Sec-WebSocket-Key"]
        accept = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with job.changed:
            stream = job.streams.pop(0) if job.streams else Stream()
            job.streams_opened += 1
            job.changed.notify_all()
        self._serve_stream(job, stream)

    def _serve_stream(self, job: FakeJob, stream: Stream) -> None:
        place = _start(job, stream)
        left = stream.send_bytes
        while not self.fake.stopped:
            with job.changed:
                if len(job.log) <= place and not job.terminal and left != 0:
                    job.changed.wait(0.02)
                piece = bytes(job.log[place : place + stream.message_bytes])
            piece = piece if left is None else piece[:left]
            if piece:
                self.connection.sendall(_frame(0x1, piece))
                place += len(piece)
                left = None if left is None else left - len(piece)
            elif left == 0 or job.terminal:
                break
        self._end_stream(job, "close" if left is None else stream.then)

    def _end_stream(self, job: FakeJob, then: str) -> None:
        if then == "drop":
            _cut(self.connection)
        elif then == "close":
            self.connection.sendall(_frame(0x8, struct.pack(">H", 1000)))
        else:  # a silent stall: the socket stays open until the peer has enough of it
            self.connection.settimeout(0.05)
            while not self.fake.stopped:
                try:
                    if not self.connection.recv(4096):
                        return
                except TimeoutError:
                    time.sleep(0)

    def _job(self, submission_id: str) -> FakeJob | None:
        job = self.fake.jobs.get(submission_id)
        if job is None:
            self._answer(404, f"Job {submission_id} does not exist")
        return job

    def _json(self, document: Any) -> None:
        self._answer(200, json.dumps(document), "application/json")

    def _answer(self, status: int, body: str | bytes, kind: str = "text/plain") -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _recognise(method: str, target: str) -> tuple[What, str]:
    path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
    if path == "/api/v0/logs/file":
        return "raw_log", query["filename"][0].removeprefix("job-driver-").removesuffix(".log")
    if path == "/api/version":
        return "version", ""
    if path == "/api/jobs/":
        return ("submit" if method == "POST" else "list"), ""
    if match := re.fullmatch(r"/api/packages/(\w+)/(.+)", path):
        return "package", f"{match[1]}://{unquote(match[2])}"
    if match := re.fullmatch(r"/api/jobs/([^/]+)(/logs/tail|/logs|/stop)?", path):
        kinds: dict[str | None, What] = {None: "status", "/logs/tail": "tail", "/logs": "logs", "/stop": "stop"}
        return kinds[match[2]], unquote(match[1])
    return "any", ""


def _start(job: FakeJob, stream: Stream) -> int:
    if stream.from_now:
        return len(job.log)
    if stream.last_lines is None:
        return 0
    lines = bytes(job.log).splitlines(keepends=True)
    return len(job.log) - sum(map(len, lines[-stream.last_lines :]))


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 127, size)
    return head + payload


def _cut(connection: socket.socket) -> None:
    """Reset the connection: no goodbye, as when a machine or a link goes."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    except OSError:
        pass
