"""The way to a Ray cluster's dashboard: address, token, session, and errors of one line.

Knows nothing of jobs or slices; ``submit`` and ``cluster`` both stand on it. Imports no ray: the whole control side
talks plain HTTP, since Ray's own client costs two seconds of CPU to import.
"""

from tpuctl.connection.address import DASHBOARD_PORT, parse_address
from tpuctl.connection.errors import AuthError, ResponseError, UnreachableError
from tpuctl.connection.session import TIMEOUT_SECONDS, Connection, connect
from tpuctl.connection.token import find_token

__all__ = [
    "DASHBOARD_PORT",
    "TIMEOUT_SECONDS",
    "AuthError",
    "Connection",
    "ResponseError",
    "UnreachableError",
    "connect",
    "find_token",
    "parse_address",
]
