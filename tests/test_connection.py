from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tpuctl.connection import (
    AuthError,
    Connection,
    ResponseError,
    UnreachableError,
    connect,
    find_token,
    parse_address,
)
from tpuctl.errors import ClusterError, UsageError

Handler = Callable[[httpx.Request], httpx.Response]


def answering(handler: Handler, token: str | Callable[[], str | None] | None = None) -> Connection:
    return Connection("http://head:8265", token, transport=httpx.MockTransport(handler))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://head:8265", "http://head:8265"),
        ("http://head:8265/", "http://head:8265"),
        ("https://ray.example.com/team", "https://ray.example.com/team"),
        ("head:8265", "http://head:8265"),
        ("head", "http://head:8265"),
        ("10.0.0.7", "http://10.0.0.7:8265"),
        ("[::1]:8265", "http://[::1]:8265"),
        (" localhost:80 ", "http://localhost:80"),
    ],
)
def test_parse_address_of_a_dashboard_gives_its_url(given: str, expected: str) -> None:
    assert parse_address(given) == expected


@pytest.mark.parametrize("given", ["ray://head:10001", "auto", "", "http://", "head:99999", "grpc://head:6379"])
def test_parse_address_of_something_else_is_refused_with_a_hint(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(given)
    assert ":8265" in (caught.value.hint or "")


def test_parse_address_ray_scheme_hint_keeps_the_host() -> None:
    with pytest.raises(UsageError) as caught:
        parse_address("ray://head:10001")
    assert caught.value.hint == "Give the dashboard's address: http://head:8265."


def test_find_token_follows_rays_order(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("from-home\n")
    (tmp_path / "other").write_text("from-path\n")
    home = {"HOME": str(tmp_path)}
    path = {**home, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}

    assert find_token({"HOME": str(tmp_path / "nowhere")}) is None
    assert find_token(home) == "from-home"
    assert find_token(path) == "from-path"
    assert find_token({**path, "RAY_AUTH_TOKEN": "from-env"}) == "from-env"
    assert find_token({**path, "RAY_AUTH_MODE": "disabled"}) is None


def test_find_token_path_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="RAY_AUTH_TOKEN_PATH: cannot read"):
        find_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "gone")})


def test_connection_sends_token_and_extra_headers() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    with Connection("head:1", "secret", headers={"X-Team": "a"}, transport=httpx.MockTransport(handler)) as connection:
        connection.get("/api/version")

    assert seen[0].headers["authorization"] == "Bearer secret"
    assert seen[0].headers["x-team"] == "a"
    assert connection.headers == {"Authorization": "Bearer secret", "X-Team": "a"}


def test_connection_expired_token_is_read_again_once() -> None:
    tokens = iter(["old", "new", "new"])

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.headers["authorization"] == "Bearer new" else 401, json={"ok": True})

    assert answering(handler, lambda: next(tokens)).get_json("/api/jobs/") == {"ok": True}


@pytest.mark.parametrize(("token", "status", "words"), [(None, 401, "wants a token"), ("x", 403, "refuses our token")])
def test_connection_without_a_good_token_says_where_ray_looks(token: str | None, status: int, words: str) -> None:
    with pytest.raises(AuthError, match=words) as caught:
        answering(lambda _: httpx.Response(status), token).get("/api/version")
    assert "RAY_AUTH_TOKEN_PATH" in (caught.value.hint or "")
    assert "\n" not in caught.value.message


def test_connection_server_error_keeps_status_body_and_last_line() -> None:
    body = "Traceback (most recent call last):\n  File x\nRuntimeError: No available agent to submit job"
    with pytest.raises(ResponseError, match="HTTP 500: RuntimeError: No available agent") as caught:
        answering(lambda _: httpx.Response(500, text=body)).post("/api/jobs/", json={})
    assert (caught.value.status, caught.value.body) == (500, body)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "response",
    [httpx.Response(200, text="<html>welcome</html>"), httpx.Response(302, headers={"location": "https://login"})],
)
def test_connection_to_another_kind_of_server_is_called_no_ray_dashboard(response: httpx.Response) -> None:
    with pytest.raises(ClusterError, match="not a Ray dashboard"):
        answering(lambda _: response).get_json("/api/version")


def test_connection_refused_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"cannot connect to http://{address}") as caught:
            connect(address, {"HOME": "/nonexistent"}).get("/api/version")
    assert "\n" not in caught.value.message


def test_connection_silent_server_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connection = Connection(f"127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.05)
        with pytest.raises(UnreachableError, match="in time"):
            connection.get("/api/version")


def test_connect_takes_headers_of_the_ray_job_command() -> None:
    environ = {"HOME": "/nonexistent", "RAY_JOB_HEADERS": '{"X-Goog": "1"}'}
    assert connect("head", environ).headers == {"X-Goog": "1"}
    with pytest.raises(UsageError, match="RAY_JOB_HEADERS"):
        connect("head", {**environ, "RAY_JOB_HEADERS": "nope"})


def test_websocket_url_keeps_prefix_and_security() -> None:
    assert Connection("https://h/x").websocket_url("/api/jobs/1/logs/tail") == "wss://h/x/api/jobs/1/logs/tail"
    assert Connection("h:1").websocket_url("/api") == "ws://h:1/api"


def test_parse_address_copied_from_a_browser_drops_the_page() -> None:
    assert parse_address("http://127.0.0.1:8265/#/overview") == "http://127.0.0.1:8265"


def test_get_json_with_bytes_that_are_not_utf8_replaces_them() -> None:
    body = b'{"logs": "caf\xe9\\n"}'
    assert answering(lambda _: httpx.Response(200, content=body)).get_json("/logs") == {"logs": "caf�\n"}


def test_ray_version_of_another_json_server_is_called_no_ray_dashboard() -> None:
    assert answering(lambda _: httpx.Response(200, json={"ray_version": "2.60.0"})).ray_version() == "2.60.0"
    for answer in [httpx.Response(404), httpx.Response(200, json=["hello"])]:
        with pytest.raises(ClusterError, match="not a Ray dashboard"):
            answering(lambda _, answer=answer: answer).ray_version()
