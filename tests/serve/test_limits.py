"""What one key may ask, slow and endless headers, and HTTPS."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import running
from tpuctl.engine.request import Request
from tpuctl.errors import UsageError
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.connection import BoundedProtocol
from tpuctl.serve.http import Front
from tpuctl.serve.keys import Keys
from tpuctl.serve.limits import KeyLimits, Limiter
from tpuctl.serve.protocol import ApiError
from tpuctl.serve.server import Server, ServerOptions, Tls

ONE, OTHER = "the-first-key", "the-second-key"
BODY = {"model": "toy", "prompt": "a", "max_tokens": 4}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_key_that_asks_too_fast_waits_and_others_do_not() -> None:
    now = [0.0]
    limiter = Limiter(KeyLimits(requests_per_second=2), clock=lambda: now[0])
    for _ in range(2):
        limiter.admit(b"one")
    with pytest.raises(ApiError) as refused:
        limiter.admit(b"one")
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.headers["Retry-After"] == "1"
    limiter.admit(b"other")
    now[0] = 0.5
    limiter.admit(b"one")
    with pytest.raises(ApiError):
        limiter.admit(b"one")
    now[0] = 100.0
    for _ in range(2):
        limiter.admit(b"one")
    with pytest.raises(ApiError):
        limiter.admit(b"one")


def test_slow_rate_lets_one_request_in_at_once_and_says_how_long_to_wait() -> None:
    now = [0.0]
    limiter = Limiter(KeyLimits(requests_per_second=0.1), clock=lambda: now[0])
    limiter.admit(b"one")
    with pytest.raises(ApiError) as refused:
        limiter.admit(b"one")
    assert refused.value.headers["Retry-After"] == "10"
    now[0] = 10.0
    limiter.admit(b"one")


def test_stream_holds_its_keys_place_until_it_ends_or_is_left() -> None:
    gate = threading.Event()

    def gated(_: Request, position: int) -> int:
        """A letter; the first few at once, the others when the gate is open."""
        return ord("a") if position < 4 or gate.wait(60) else 256

    options = HttpOptions(keys=Keys([ONE, OTHER]), key_limits=KeyLimits(concurrent=1))
    with running(ToyEngine(gated), http=options) as served:
        body = {**BODY, "stream": True, "max_tokens": 200}
        with served.client.stream("POST", "/v1/completions", json=body, headers=bearer(ONE)) as stream:
            lines = stream.iter_lines()  # held, since with it goes the connection
            next(lines)
            refused = served.client.post("/v1/completions", json=BODY, headers=bearer(ONE))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            gate.set()
            assert served.client.post("/v1/completions", json=BODY, headers=bearer(OTHER)).status_code == 200
        served.wait_until_idle()
        for _ in range(3):
            assert served.client.post("/v1/completions", json=BODY, headers=bearer(ONE)).status_code == 200
            assert served.client.post("/v1/completions", json={}, headers=bearer(ONE)).status_code == 400


def test_wrong_key_uses_up_nothing() -> None:
    options = HttpOptions(keys=Keys([ONE]), key_limits=KeyLimits(requests_per_second=1))
    with running(http=options) as served:
        for _ in range(3):
            assert served.client.get("/v1/models", headers=bearer("no-such-key")).status_code == 401
        assert served.client.get("/v1/models", headers=bearer(ONE)).status_code == 200
        assert served.client.get("/v1/models", headers=bearer(ONE)).status_code == 429


@pytest.mark.parametrize("begun", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"])
def test_connection_whose_headers_do_not_come_is_closed(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(BoundedProtocol, "header_seconds", 0.2)
    with running() as served, socket.create_connection(("127.0.0.1", served.server.port), timeout=5) as slow:
        slow.sendall(begun)
        assert slow.recv(100) == b""
        assert served.client.post("/v1/completions", json=BODY).status_code == 200


def test_connection_with_endless_headers_is_closed() -> None:
    with running() as served, socket.create_connection(("127.0.0.1", served.server.port), timeout=5) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\n")
        assert _is_closed(endless, b"X-Long: " + b"a" * 8000 + b"\r\n")
        assert served.client.get("/health").status_code == 200


def _is_closed(connection: socket.socket, line: bytes) -> bool:
    """Whether the other side goes while a line is sent again and again."""
    try:
        for _ in range(200):
            connection.sendall(line)
        return connection.recv(100) == b""
    except ConnectionError:
        return True


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "cert.pem").write_bytes(cert.public_bytes(pem))
    plain = serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return Tls(cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))


def test_endpoint_with_a_certificate_speaks_https_alone(tls: Tls) -> None:
    with running(options=ServerOptions(port=0, drain_seconds=0, tls=tls)) as served:
        assert served.client.post("/v1/completions", json=BODY).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(served.url.replace("https", "http") + "/health")
        known = ssl.create_default_context(cafile=tls.cert)
        known.check_hostname = False
        assert httpx.get(f"{served.url}/health", verify=known).status_code == 200


def test_certificate_that_cannot_be_used_is_refused_before_anything_listens(tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for wrong in (
        Tls(cert=str(tmp_path / "none.pem"), key=tls.key),
        Tls(cert=tls.cert, key=str(tmp_path / "empty.pem")),
    ):
        with pytest.raises(UsageError, match="no HTTPS"):
            Server(Front(HttpOptions()), ServerOptions(port=0, tls=wrong))
