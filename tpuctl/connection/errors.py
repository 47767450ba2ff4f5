"""What can go wrong between us and a cluster's dashboard."""

from __future__ import annotations

from tpuctl.errors import ClusterError


class UnreachableError(ClusterError):
    """Nothing answers at the address, or not in time. Worth another try."""


class AuthError(ClusterError):
    """The cluster answers 401 or 403: no token, a wrong one, or one that expired."""


class ResponseError(ClusterError):
    """Ray answered with an HTTP error; ``status`` and ``body`` are what it sent."""

    def __init__(self, message: str, *, status: int, body: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
