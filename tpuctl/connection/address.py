"""The address of a Ray dashboard, as people write it and as a URL."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from tpuctl.connection.token import TOKEN_HINT
from tpuctl.errors import UsageError

DASHBOARD_PORT = 8265


def parse_address(address: str) -> str:
    """The dashboard's URL: ``host``, ``host:port`` or ``http(s)://…``, without a trailing slash.

    Raises:
        UsageError: another scheme (``ray://``), ``auto``, or no host.
    """
    text = address.strip()
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise UsageError(f"cluster address {address!r}: {error}") from None
    if url.username or url.password:
        raise UsageError("the cluster address has a user or a password in it", hint=TOKEN_HINT)
    if url.scheme not in ("http", "https"):
        raise UsageError(
            f"cluster address {address!r}: tpuctl speaks HTTP, not {url.scheme}://", hint=_address_hint(url)
        )
    if not url.hostname or url.hostname == "auto" or not _port_fits(url):
        raise UsageError(f"cluster address {address!r} has no host or no valid port", hint=_address_hint(url))
    if "://" not in text and url.port is None:
        return f"http://{url.netloc}:{DASHBOARD_PORT}{url.path}".rstrip("/")
    # What stands after "#" comes from a browser's address line and is nothing to the API.
    return f"{url.scheme}://{url.netloc}{url.path}".rstrip("/")


def _address_hint(url: SplitResult) -> str:
    host = url.hostname if url.hostname not in (None, "", "auto") else "HEAD"
    return f"Give the dashboard's address: http://{host}:{DASHBOARD_PORT}."


def _port_fits(url: SplitResult) -> bool:
    try:
        return url.port is None or url.port > 0
    except ValueError:
        return False
