"""The environment in which a simulated cluster's processes run: the user's, made fit for it.

Pure: environment in, environment out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.cluster.processes import MARKER_VARIABLE

# Whatever these say is about another cluster, or about a machine that has TPUs.
_DROPPED_PREFIXES = ("RAY_", "TPU_", "TPUCTL_", "MEGASCALE_", "LIBTPU_", "CLOUD_TPU_", "PJRT_", "JAX_", "XLA_")

_SETTINGS = {
    # Ray keeps off the network: 127.0.0.1 is every node's address. (Its own default on macOS and Windows.)
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Below `uv run` Ray would have every worker make an environment of its own with uv; ours is the one that runs us.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # The workers Ray starts ahead fit no job of ours, since each job has a runtime environment.
    "RAY_prestart_worker_first_driver": "0",
    # A killed host is called dead after some seconds instead of a quarter of a minute.
    "RAY_health_check_period_ms": "1000",
    # Port 0 lets every cluster have its own.
    "DASHBOARD_METRIC_PORT": "0",
    "RAY_AUTH_MODE": "token",
}

# A step on CPU takes its temporary memory anew each time. Given back in between, and in pages of 4 KiB, that costs as
# much as the step itself: so malloc keeps what it has, in large pages. (The two limits are sizes no process reaches.)
_MALLOC = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"hugetlb": 1, "mmap_threshold": 2**32, "trim_threshold": 2**34, "top_pad": 2**26}.items()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What is the cluster's own in the environment: marker, token file, temporary directory, bytecode's place."""

    marker: str
    token_path: str
    temp_dir: str
    bytecode_dir: Path
    programs_dir: Path


def cluster_environment(environ: Mapping[str, str], identity: Identity) -> dict[str, str]:
    """The environment of the keeper, which every process of the cluster inherits."""
    kept = {key: value for key, value in environ.items() if not key.startswith(_DROPPED_PREFIXES)}
    # A job's `python` is the one that runs the cluster.
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {
        **with_bytecode(kept, identity.bytecode_dir),
        **_SETTINGS,
        # A program that was compiled for this machine before, be it by an earlier run or before a restart, is loaded.
        "JAX_COMPILATION_CACHE_DIR": str(identity.programs_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "GLIBC_TUNABLES": kept.get("GLIBC_TUNABLES", _MALLOC),
        "PATH": path,
        "RAY_AUTH_TOKEN_PATH": identity.token_path,
        # Ray's directory in it holds the cluster's address; without it Ray finds every cluster of the machine.
        "RAY_TMPDIR": identity.temp_dir,
        MARKER_VARIABLE: identity.marker,
    }


def with_bytecode(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """``environ`` under which Python keeps bytecode, in ``directory`` if it may not stand beside the sources.

    A cluster is a dozen Python processes that import the same modules. Where Ray was installed without bytecode and
    ``PYTHONDONTWRITEBYTECODE`` is set, each would compile them all again, which is two thirds of its start.
    """
    if not environ.get("PYTHONDONTWRITEBYTECODE") or environ.get("PYTHONPYCACHEPREFIX") or _ray_has_bytecode():
        return dict(environ)
    kept = {key: value for key, value in environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(directory)}


def _ray_has_bytecode() -> bool:
    spec = importlib.util.find_spec("ray")
    return spec is not None and spec.cached is not None and Path(spec.cached).exists()
