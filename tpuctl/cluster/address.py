"""Which cluster a command means, and the session to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpuctl.cluster.registry import Cluster, Registry
from tpuctl.connection import Connection, connect, parse_address
from tpuctl.errors import ClusterError

Source = Literal["--cluster", "recipe", "TPUCTL_CLUSTER", "RAY_API_SERVER_ADDRESS", "running", "start"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The cluster and what named it. ``address`` is ``None`` when a simulated one is yet to be started."""

    address: str | None
    source: Source

    def required(self) -> str:
        """The address, where none is to be started.

        Raises:
            ClusterError: none is named and none runs.
        """
        if self.address is None:
            hint = "give --cluster URL, set TPUCTL_CLUSTER, or start one on this machine: tpuctl cluster up"
            raise ClusterError("no cluster is named and no simulated one runs", hint=hint)
        return self.address

    def __str__(self) -> str:
        if self.source == "start":
            return "a simulated slice, to be started on this machine"
        if self.source == "running":
            return f"the simulated slice running on this machine ({self.address})"
        return f"{self.address} (from {'the recipe' if self.source == 'recipe' else self.source})"


def choose(
    flag: str | None,
    *,
    recipe: str | None = None,
    environ: Mapping[str, str] = os.environ,
    running: Cluster | None = None,
) -> Target:
    """The first that is given: ``--cluster``, the recipe, ``TPUCTL_CLUSTER``, Ray's variable, a running simulated one.

    Raises:
        UsageError: the one that won is no dashboard's address.
    """
    named: tuple[tuple[Source, str | None], ...] = (
        ("--cluster", flag),
        ("recipe", recipe),
        ("TPUCTL_CLUSTER", environ.get("TPUCTL_CLUSTER")),
        ("RAY_API_SERVER_ADDRESS", environ.get("RAY_API_SERVER_ADDRESS")),
    )
    for source, address in named:
        if address:
            return Target(address=parse_address(address), source=source)
    if running is not None:
        return Target(address=running.address, source="running")
    return Target(address=None, source="start")


def open_session(
    address: str, *, environ: Mapping[str, str] = os.environ, registry: Registry | None = None
) -> Connection:
    """The session to ``address``: a simulated cluster's own token if it is one's, else a token by Ray's rules."""
    own = simulated_at(address, registry=registry)
    return connect(address, environ) if own is None else own.connect()


def simulated_at(address: str, *, registry: Registry | None = None) -> Cluster | None:
    """The simulated cluster of this machine that has the address."""
    registry = registry or Registry.at_home()
    url = parse_address(address).replace("//localhost:", "//127.0.0.1:")
    known = (registry.load(name) for name in registry.names())
    return next((cluster for cluster in known if cluster is not None and cluster.address == url), None)
