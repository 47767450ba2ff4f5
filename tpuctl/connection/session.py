"""One HTTP session to a Ray cluster's dashboard: its requests, its websocket, and errors of one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from tpuctl.connection.address import DASHBOARD_PORT, parse_address
from tpuctl.connection.errors import AuthError, ResponseError, UnreachableError
from tpuctl.connection.token import TOKEN_HINT, find_token, job_headers
from tpuctl.errors import ClusterError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

TIMEOUT_SECONDS = 8.0
TokenSource = Callable[[], str | None]

_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}


class Connection:
    """One HTTP session. Close it, or use it as a context manager."""

    def __init__(
        self,
        address: str,
        token: str | TokenSource | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = parse_address(address)
        self._token_source: TokenSource = token if callable(token) else lambda: token
        self._token = self._token_source()
        self._extra_headers = dict(headers or {})
        self._timeout_seconds = timeout_seconds
        self._loopback = urlsplit(self.address).hostname in _LOOPBACK_HOSTS
        # A proxy from the environment can't reach this machine's loopback, whatever NO_PROXY says.
        self._client = httpx.Client(
            base_url=self.address,
            timeout=timeout_seconds,
            transport=transport,
            trust_env=not self._loopback,
        )

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, for a websocket to the same cluster too."""
        token = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return {**token, **self._extra_headers}

    def websocket_url(self, path: str) -> str:
        """``path`` on this cluster as a ``ws://`` or ``wss://`` URL."""
        return "ws" + self.address.removeprefix("http") + path

    def get(self, path: str, **options: Any) -> httpx.Response:
        """``GET path``; ``options`` are httpx's (``params``, ``timeout``).

        Raises:
            UnreachableError: no answer in time.
            AuthError: 401 or 403, with the token as it now stands in its source.
            ResponseError: any other HTTP error.
            ClusterError: a redirect, as a login page sends.
        """
        return self._request("GET", path, options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """``POST path``; options and errors as ``get``, with ``json`` or ``content`` for the body."""
        return self._request("POST", path, options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        """``PUT path``; options and errors as ``post``."""
        return self._request("PUT", path, options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        """``DELETE path``; options and errors as ``get``."""
        return self._request("DELETE", path, options)

    def get_json(self, path: str, **options: Any) -> Any:
        """The JSON that ``GET path`` answers; a page of anything else is no Ray dashboard's.

        Bytes that are not UTF-8 are replaced: a job's log travels as JSON, and what a job prints is not ours to judge.
        """
        response = self.get(path, **options)
        try:
            return json.loads(response.content.decode("utf-8", errors="replace"))
        except ValueError:
            raise self._not_ray("it answers with something that is not JSON") from None

    def open_websocket(self, path: str) -> ClientConnection:
        """An open websocket to ``path`` that takes messages of any size; errors as ``get``."""
        # Only following a log needs it, and importing it costs as much as starting up.
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect as open_socket

        try:
            return open_socket(
                self.websocket_url(path),
                additional_headers=self.headers,
                open_timeout=self._timeout_seconds,
                # Ray's server never reads from the socket, so it answers neither a ping nor a goodbye.
                ping_interval=None,
                close_timeout=0.1,
                max_size=None,
                proxy=None if self._loopback else True,
            )
        except InvalidStatus as error:
            body, request = bytes(error.response.body or b""), httpx.Request("GET", self.address + path)
            raise self._error(httpx.Response(error.response.status_code, content=body, request=request)) from None
        except TimeoutError:
            raise UnreachableError(f"no answer from {self.address} in time") from None
        except (OSError, InvalidHandshake, EOFError) as error:
            raise UnreachableError(f"cannot connect to {self.address}: {error or type(error).__name__}") from None

    def ray_version(self) -> str:
        """Ray's version there: the cheapest proof that it is a dashboard and lets us in."""
        try:
            answer = self.get_json("/api/version")
        except ResponseError as error:
            raise self._not_ray(f"it answers HTTP {error.status}") from None
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise self._not_ray("it tells no version of Ray")
        return str(answer["ray_version"])

    def close(self) -> None:
        """Close the session's sockets."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        response = self._send(method, path, options)
        if response.status_code in (401, 403) and self._refresh_token():
            response = self._send(method, path, options)
        if not response.is_success:
            raise self._error(response)
        return response

    def _send(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        try:
            return self._client.request(method, path, headers=self.headers, **options)
        except httpx.TimeoutException:
            raise UnreachableError(
                f"no answer from {self.address} in time", hint="Check the address, the VPN and the port-forward."
            ) from None
        except httpx.ConnectError as error:
            raise UnreachableError(
                f"cannot connect to {self.address}: {error}", hint="Is the cluster up and the port-forward running?"
            ) from None
        except httpx.HTTPError as error:
            raise UnreachableError(f"the connection to {self.address} broke: {error or type(error).__name__}") from None

    def _refresh_token(self) -> bool:
        before, self._token = self._token, self._token_source()
        return self._token != before

    def _error(self, response: httpx.Response) -> ClusterError:
        if response.status_code in (401, 403):
            return self._refused(response)
        if response.is_error and response.text.lstrip().startswith("<"):
            return self._not_ray(f"it answers HTTP {response.status_code} with a web page")
        if response.is_error:
            return _response_error(response)
        return self._not_ray(f"it redirects to {response.headers.get('location', '?')}")

    def _refused(self, response: httpx.Response) -> AuthError:
        what = "wants a token" if self._token is None else "refuses our token"
        return AuthError(f"{self.address} {what} (HTTP {response.status_code})", hint=TOKEN_HINT)

    def _not_ray(self, why: str) -> ClusterError:
        return ClusterError(
            f"{self.address} is not a Ray dashboard: {why}",
            hint=f"The address is that of the dashboard, by default http://HEAD:{DASHBOARD_PORT}.",
        )


def connect(address: str, environ: Mapping[str, str] = os.environ) -> Connection:
    """The session to ``address``, with token and headers found by Ray's own rules.

    Sends nothing yet. ``RAY_JOB_HEADERS`` (a JSON object) is honoured as the ``ray job`` command does.

    Raises:
        UsageError: an address that can't be a dashboard's, or ``RAY_JOB_HEADERS`` that is no JSON object.
        ClusterError: ``RAY_AUTH_TOKEN_PATH`` names a file that can't be read.
    """
    return Connection(address, lambda: find_token(environ), headers=job_headers(environ))


def _response_error(response: httpx.Response) -> ResponseError:
    body = response.text.strip()
    lines = body.splitlines()
    # Ray sends a traceback as the body of a 500; its last line is the reason.
    reason = lines[-1].strip() if lines else response.reason_phrase
    message = f"{response.request.method} {response.request.url.path}: HTTP {response.status_code}: {reason[:500]}"
    return ResponseError(message, status=response.status_code, body=body)
