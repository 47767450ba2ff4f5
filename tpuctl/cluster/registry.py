"""What is remembered of the simulated clusters of this machine: one directory each, one lock each.

A directory holds ``state.json`` and the cluster's token. It is written before the first process starts and goes
when the last one has ended, so whatever a crash leaves behind can be found and cleaned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.cluster.shape import NodeSize, SimulatedShape
from tpuctl.connection import Connection
from tpuctl.errors import ClusterError, UsageError

STATE_SCHEMA = "tpuctl.cluster/1"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMark:
    """One process, safely: a pid may be used again, but not with the same start time (seconds since the epoch)."""

    pid: int
    started: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMark:
    """One host: where it sits in its slice, its Ray node and the raylet's process."""

    slice_name: str
    worker_id: int
    node_id: str
    raylet: ProcessMark


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A simulated cluster. ``address`` is the dashboard's URL, empty until it is up; ``phases`` are seconds.

    ``marker`` stands in the environment of every process of the cluster; ``reused`` says that ``up`` found it up.
    """

    name: str
    marker: str
    created: float
    shape: SimulatedShape
    size: NodeSize
    temp_dir: str
    token_path: str
    keeper: ProcessMark | None = None
    address: str = ""
    gcs_address: str = ""
    hosts: tuple[HostMark, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)
    reused: bool = False

    @property
    def token(self) -> str:
        """The cluster's own token, as Ray wants it."""
        return Path(self.token_path).read_text().strip()

    def connect(self) -> Connection:
        """A session to the cluster's dashboard."""
        return Connection(self.address, self.token)


class Registry:
    """The clusters known on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def at_home(cls, environ: Mapping[str, str] = os.environ) -> Registry:
        """The user's own: ``$TPUCTL_STATE_DIR``, else ``tpuctl`` in the XDG cache directory."""
        return cls(state_dir(environ) / "clusters")

    def names(self) -> list[str]:
        """Every cluster with a state, alive or not."""
        if not self.root.is_dir():
            return []
        return sorted(path.parent.name for path in self.root.glob("*/state.json"))

    def load(self, name: str) -> Cluster | None:
        """The cluster's last known state.

        Raises:
            UsageError: a name no cluster can have.
            ClusterError: a state that another version of tpuctl wrote.
        """
        path = self._directory(name) / "state.json"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        return _decode(json.loads(text), path)

    def save(self, cluster: Cluster) -> None:
        """Write the state so that no reader ever sees half of it."""
        directory = self._directory(cluster.name)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = directory / "state.json.part"
        draft.write_text(json.dumps({"schema": STATE_SCHEMA, **dataclasses.asdict(cluster)}, indent=2) + "\n")
        draft.replace(directory / "state.json")

    def make_token(self, name: str) -> Path:
        """A new token, in a file that only its owner can read."""
        directory = self._directory(name)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / "token"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        return path

    def remove(self, name: str) -> None:
        """Forget the cluster."""
        shutil.rmtree(self._directory(name), ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the cluster's lock: of two commands that start or end it, the second waits."""
        directory = self._directory(name)
        self.root.mkdir(parents=True, exist_ok=True)
        with directory.with_name(f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _directory(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"cluster name {name!r}: use lower-case letters, digits, dot, dash and underscore, at most 41"
            )
        return self.root / name


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where tpuctl keeps what is this machine's alone."""
    own = environ.get("TPUCTL_STATE_DIR")
    return Path(own) if own else cache_dir(environ)


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where tpuctl keeps what may be deleted at any time: ``tpuctl`` in the XDG cache directory."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tpuctl"


def _decode(document: dict[str, Any], path: Path) -> Cluster:
    if document.pop("schema", None) != STATE_SCHEMA:
        raise ClusterError(f"{path} was written by another version of tpuctl", hint="end its processes and delete it")
    keeper = document.pop("keeper")
    hosts = document.pop("hosts")
    return Cluster(
        **{
            **document,
            "shape": _shape(document["shape"]),
            "size": NodeSize(**document["size"]),
            "keeper": None if keeper is None else ProcessMark(**keeper),
            "hosts": tuple(HostMark(**{**host, "raylet": ProcessMark(**host["raylet"])}) for host in hosts),
        }
    )


def _shape(document: dict[str, Any]) -> SimulatedShape:
    beside = tuple(_shape(part) for part in document.get("beside", ()))
    return SimulatedShape(**{**document, "beside": beside})
