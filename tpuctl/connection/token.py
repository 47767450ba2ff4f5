"""The token and headers that a cluster wants to see, found by Ray's own rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tpuctl.errors import ClusterError, UsageError

TOKEN_HINT = (
    "Ray reads its token from RAY_AUTH_TOKEN, from the file named by RAY_AUTH_TOKEN_PATH, or from ~/.ray/auth_token; "
    "set one of them to the cluster's token."
)


def find_token(environ: Mapping[str, str]) -> str | None:
    """The token by Ray's rules: ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``, ``~/.ray/auth_token``, else none."""
    if environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    if path := environ.get("RAY_AUTH_TOKEN_PATH"):
        return _token_in(Path(path).expanduser())
    default = Path(environ.get("HOME") or Path.home()) / ".ray" / "auth_token"
    return default.read_text().strip() or None if default.is_file() else None


def job_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """The headers in ``RAY_JOB_HEADERS``, a JSON object, which the ``ray job`` command honours too.

    Raises:
        UsageError: it is no JSON object.
    """
    text = environ.get("RAY_JOB_HEADERS")
    if not text:
        return {}
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    if not isinstance(headers, dict):
        # Not what it holds instead: it may well be a token.
        raise UsageError(
            "RAY_JOB_HEADERS is no JSON object", hint='write e.g. RAY_JOB_HEADERS=\'{"Authorization": "Bearer …"}\''
        )
    return {str(name): str(value) for name, value in headers.items()}


def _token_in(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise ClusterError(f"RAY_AUTH_TOKEN_PATH: cannot read {path}: {error.strerror}") from None
    if not token:
        raise ClusterError(f"RAY_AUTH_TOKEN_PATH: {path} is empty")
    return token
