"""Runs before any test imports JAX: eight virtual CPU devices, never a chip, and no bucket but an emulated one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.gcs_emulator import Emulator, emulator
from tpuctl.cluster.registry import Cluster, Registry
from tpuctl.cluster.shape import SimulatedShape
from tpuctl.cluster.simulated import down, up
from tpuctl.storage import client_env

BUCKET = "tpu-test"

os.environ["JAX_PLATFORMS"] = "cpu"
# Below `uv run` Ray would make an environment with uv for every worker of a test that starts Ray itself.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
# Read when the client libraries are imported; the endpoint itself is read when a client is made.
os.environ.update({**client_env(None), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"})


@pytest.fixture(scope="session")
def gcs_service() -> Iterator[Emulator]:
    """The emulated Cloud Storage of this session."""
    with emulator(BUCKET) as service:
        yield service


@pytest.fixture
def gcs(gcs_service: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The emulated Cloud Storage with one empty bucket, ``tpu-test``, no faults, and this process's clients bent there.

    Some clients look up the endpoint once and keep it, so all tests share one service.
    """
    for name, value in client_env(gcs_service.endpoint).items():
        monkeypatch.setenv(name, value)
    gcs_service.buckets.create(BUCKET)
    gcs_service.faults.clear()
    gcs_service.tally.clear()
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
