"""Which cluster a verb means, and the jobs on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.submit.jobs import Jobs

_VARIABLES = ("TPUCTL_CLUSTER", "RAY_API_SERVER_ADDRESS")


@contextmanager
def open_jobs(cluster: str | None) -> Iterator[Jobs]:
    """The jobs of the cluster named by ``--cluster`` or the environment.

    Raises:
        UsageError: no cluster is named.
    """
    from tpuctl.connection import connect
    from tpuctl.submit.ray_jobs import RayJobs

    address = cluster or next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
    if address is None:
        raise UsageError("no cluster is named", hint=f"give --cluster URL, or set {' or '.join(_VARIABLES)}")
    with connect(address, os.environ) as connection:
        yield RayJobs(connection)
