"""One HTTP connection to a Ray dashboard: address, token, and every failure as one line.

Lies below ``submit`` and ``cluster``, which both talk to the same dashboard. Knows HTTP and Ray's rules for the
token; knows nothing of jobs or nodes. Imports no ray: its client alone costs two seconds of CPU.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx

from tpuctl.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

DEFAULT_PORT = 8265

_TOKEN_HINT = "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token, or put it into ~/.ray/auth_token"
_DASHBOARD_HINT = f"give the dashboard's address, such as http://head:{DEFAULT_PORT}"


class UnreachableError(ClusterError):
    """No answer: refused, timed out, cut off. It may pass."""


class NotLoggedInError(ClusterError):
    """The dashboard wants a token, or another one (HTTP 401 or 403)."""


class NotADashboardError(ClusterError):
    """Something answers there, but not a Ray dashboard."""


class RefusedError(ClusterError):
    """The dashboard answered with an error. ``status`` is HTTP's, ``text`` what it said."""

    def __init__(self, message: str, *, status: int, text: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.text = text


class Connection:
    """An open connection to the dashboard at ``address`` (``http://host:port``). Close it, or use it in a ``with``."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        self.token = token
        self._timeout_seconds = timeout_seconds
        # A proxy named in the environment can't reach this machine's own loopback.
        self._loopback = _is_loopback(urlsplit(address).hostname or "")
        self._client = httpx.Client(
            base_url=address,
            headers=self.headers,
            timeout=timeout_seconds,
            trust_env=not self._loopback,
            transport=transport,
        )

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry the token; the websocket handshake needs them too."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str, **params: str | int) -> httpx.Response:
        """GET ``path``; raises a ``ClusterError`` for any answer but a success."""
        return self._request("GET", path, params=params or None)

    def get_json(self, path: str, **params: str | int) -> Any:
        """GET ``path`` and read its JSON. Bytes that aren't UTF-8 are replaced, not fatal: logs come this way."""
        response = self.get(path, **params)
        try:
            return json.loads(response.content.decode("utf-8", errors="replace"))
        except ValueError as error:
            raise self._not_a_dashboard() from error

    def ray_version(self) -> str:
        """The version of Ray there; the cheapest way to learn that it is a dashboard which lets us in."""
        try:
            answer = self.get_json("/api/version")
        except RefusedError as error:
            raise self._not_a_dashboard() from error
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise self._not_a_dashboard()
        return str(answer["ray_version"])

    def post(self, path: str, document: Any = None) -> httpx.Response:
        """POST a JSON document."""
        return self._request("POST", path, json=document)

    def put(self, path: str, content: bytes, *, timeout_seconds: float | None = None) -> httpx.Response:
        """PUT raw bytes; ``timeout_seconds`` bounds each wait for the peer, not the whole transfer."""
        return self._request("PUT", path, content=content, timeout=timeout_seconds or self._timeout_seconds)

    def delete(self, path: str) -> httpx.Response:
        """DELETE ``path``."""
        return self._request("DELETE", path)

    def websocket(self, path: str) -> ClientConnection:
        """An open websocket to ``path``, for text frames of any size.

        Raises:
            ClusterError: as for the HTTP verbs.
        """
        # Only following logs needs it, and it costs what a third of our start-up does.
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect as open_websocket

        url = self.address.replace("http", "ws", 1) + path
        try:
            return open_websocket(
                url,
                additional_headers=self.headers,
                open_timeout=self._timeout_seconds,
                close_timeout=1,
                max_size=None,
                proxy=None if self._loopback else True,
            )
        except InvalidStatus as error:
            body = bytes(error.response.body or b"").decode("utf-8", errors="replace")
            raise self._refusal(error.response.status_code, body, path) from error
        except (OSError, InvalidHandshake) as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        """Let the sockets go."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **arguments)
        except (httpx.RemoteProtocolError, httpx.DecodingError) as error:
            raise self._garbled(error) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_success:
            return response
        raise self._refusal(response.status_code, response.text, path)

    def _refusal(self, status: int, text: str, path: str) -> ClusterError:
        if status in (401, 403):
            said = "wants a token" if self.token is None else "does not accept our token"
            return NotLoggedInError(f"the Ray cluster at {self.address} {said} (HTTP {status})", hint=_TOKEN_HINT)
        if 300 <= status < 400:
            return self._not_a_dashboard()
        said = last_line(text) or "no text"
        return RefusedError(
            f"the Ray cluster at {self.address} answers HTTP {status}: {said}", status=status, text=text
        )

    def _garbled(self, error: httpx.TransportError | httpx.DecodingError) -> ClusterError:
        # A server that dies mid-answer looks so; one that speaks another protocol does too, but says something.
        if "disconnected" in str(error) or "closed" in str(error):
            return self._unreachable(error)
        return self._not_a_dashboard()

    def _unreachable(self, error: Exception) -> UnreachableError:
        reason = _reason(error)
        return UnreachableError(f"no Ray cluster answers at {self.address}: {reason}", hint=_DASHBOARD_HINT)

    def _not_a_dashboard(self) -> NotADashboardError:
        return NotADashboardError(f"what answers at {self.address} is not a Ray dashboard", hint=_DASHBOARD_HINT)


def connect(address: str, environ: Mapping[str, str], *, timeout_seconds: float = 30.0) -> Connection:
    """A connection to the dashboard a user named, with the token that Ray's own rules would find.

    Nothing is sent yet; a wrong address shows at the first request.

    Raises:
        UsageError: the address is of another kind (``ray://``) or no address.
        ClusterError: RAY_AUTH_TOKEN_PATH names a file that can't be read.
    """
    return Connection(parse_address(address), token=find_token(environ), timeout_seconds=timeout_seconds)


def parse_address(text: str) -> str:
    """The base URL, without a trailing slash, for ``http://h:p``, ``https://h``, ``h:p`` or ``h``."""
    text = text.strip()
    if text.startswith("ray://"):
        raise UsageError(f"{text} is a Ray Client address; tpuctl speaks to the Jobs API", hint=_DASHBOARD_HINT)
    parts = _split(text if "://" in text else f"http://{text}", text)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"cluster address {text!r}: expected http:// or https://", hint=_DASHBOARD_HINT)
    netloc = parts.netloc
    if parts.port is None and parts.scheme == "http":
        netloc = f"{netloc.rstrip(':')}:{DEFAULT_PORT}"
    # What follows "#" or "?" comes from a browser's address line and means nothing to the API.
    return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))


def find_token(environ: Mapping[str, str]) -> str | None:
    """The token by Ray's rules: RAY_AUTH_TOKEN, then the file RAY_AUTH_TOKEN_PATH, then ~/.ray/auth_token.

    RAY_AUTH_MODE=disabled means none. A token that the cluster doesn't ask for does no harm.
    """
    if environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    if named := environ.get("RAY_AUTH_TOKEN_PATH"):
        return _read_token(Path(named))
    home = Path(environ["HOME"]) if "HOME" in environ else Path.home()
    default = home / ".ray" / "auth_token"
    return _read_token(default) if default.is_file() else None


def last_line(text: str) -> str:
    """The last line that says something: of a traceback, the exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _split(url: str, text: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # Reading the port is what checks it.
        if not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise UsageError(f"cluster address {text!r}: expected host:port", hint=_DASHBOARD_HINT) from None
    return parts


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotLoggedInError(f"can't read the token in {path}: {_reason(error)}", hint=_TOKEN_HINT) from error
    if not token:
        raise NotLoggedInError(f"the token file {path} is empty", hint=_TOKEN_HINT)
    return token


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
