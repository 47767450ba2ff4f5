"""Runs before any test imports JAX: eight virtual CPU devices, never a chip, no bucket but an emulated one."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.fakes.gcs_process import GcsService, gcs_process
from tpuctl.cluster.registry import Cluster, Registry
from tpuctl.cluster.shape import SimulatedShape
from tpuctl.cluster.simulated import down, up
from tpuctl.storage import client_env

BUCKET = "tpu-test"

os.environ["JAX_PLATFORMS"] = "cpu"
# Below `uv run` Ray would make an environment with uv for every worker of a test that starts Ray itself.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    # Most of the time of these tests is the compiler's, and their programs run for milliseconds.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()

ROOT = Path(__file__).parents[1]

# Compiled programs, for the tests of this session and the processes they start; each session begins with none.
PROGRAMS = os.environ.get("JAX_COMPILATION_CACHE_DIR") or tempfile.mkdtemp(prefix="tpuctl-test-programs-")
OWNS_PROGRAMS = os.environ.get("JAX_COMPILATION_CACHE_DIR") is None
os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

# Read when the client libraries are imported; the endpoint itself is read when a client is made.
os.environ.update({**client_env(None), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"})


class OneWorkerForRay(LoadScopeScheduling):
    """Each file's tests on one worker, for what they share, and all files that start Ray nodes on the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "ray" if starts_ray(file) else file


@functools.cache
def starts_ray(file: str) -> bool:
    return "pytest.mark.ray" in (ROOT / file).read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerForRay:
    return OneWorkerForRay(config, log)


def pytest_unconfigure() -> None:
    if OWNS_PROGRAMS:
        shutil.rmtree(PROGRAMS, ignore_errors=True)


@pytest.fixture(scope="session")
def gcs_service() -> Iterator[GcsService]:
    """The emulated Cloud Storage of this session."""
    with gcs_process(BUCKET) as service:
        yield service


@pytest.fixture
def gcs(gcs_service: GcsService, monkeypatch: pytest.MonkeyPatch) -> GcsService:
    """The emulated Cloud Storage with one empty bucket, ``tpu-test``, no faults, and this process's clients bent there.

    Some clients look up the endpoint once and keep it, so all tests share one service.
    """
    for name, value in client_env(gcs_service.endpoint).items():
        monkeypatch.setenv(name, value)
    gcs_service.reset(BUCKET)
    return gcs_service


@pytest.fixture(scope="session", autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tpuctl remembers of this machine, for this test session alone."""
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPUCTL_STATE_DIR", str(directory))
        yield directory


@pytest.fixture(scope="session")
def simulated_cluster(state_dir: Path) -> Iterator[Callable[[SimulatedShape], Cluster]]:
    """Gives a running cluster of a shape: one for each shape, shared by all tests, ended when the last is done."""
    registry = Registry(state_dir / "clusters")
    yield lambda shape: up(shape, registry=registry)
    for name in registry.names():
        down(name, registry=registry)
