from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tpuctl.cluster import environment
from tpuctl.cluster.environment import Identity, cluster_environment, with_bytecode

IDENTITY = Identity(
    marker="abc",
    token_path="/state/token",
    temp_dir="/tmp/tpuctl-x",
    bytecode_dir=Path("/cache/bytecode"),
    programs_dir=Path("/cache/programs"),
)


def test_cluster_environment_drops_what_is_said_of_other_clusters_and_machines() -> None:
    given = {
        "HOME": "/home/me",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_TOKEN": "theirs",
        "TPU_WORKER_ID": "3",
        "TPUCTL_CLUSTER": "http://prod:8265",
        "JAX_PLATFORMS": "tpu",
        "XLA_FLAGS": "--xla_dump_to=/x",
    }
    made = cluster_environment(given, IDENTITY)
    assert made["HOME"] == "/home/me"
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN", "TPU_WORKER_ID", "TPUCTL_CLUSTER", "JAX_PLATFORMS"} & made.keys()


def test_cluster_environment_keeps_authentication_on_with_its_own_token() -> None:
    made = cluster_environment({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": "/theirs"}, IDENTITY)
    assert (made["RAY_AUTH_MODE"], made["RAY_AUTH_TOKEN_PATH"]) == ("token", "/state/token")
    assert (made["TPUCTL_SIMULATED_ID"], made["RAY_TMPDIR"]) == ("abc", "/tmp/tpuctl-x")


def test_cluster_environment_python_of_a_job_is_the_one_that_runs_the_cluster() -> None:
    made = cluster_environment({"PATH": "/usr/bin"}, IDENTITY)
    assert made["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]


def test_cluster_environment_has_malloc_keep_its_memory_unless_told_otherwise() -> None:
    assert "glibc.malloc.hugetlb=1" in cluster_environment({}, IDENTITY)["GLIBC_TUNABLES"].split(":")
    own = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert cluster_environment(own, IDENTITY)["GLIBC_TUNABLES"] == own["GLIBC_TUNABLES"]


@pytest.mark.parametrize(
    ("environ", "has_bytecode", "expected"),
    [
        ({"PYTHONDONTWRITEBYTECODE": "1"}, False, {"PYTHONPYCACHEPREFIX": "/cache"}),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, True, {"PYTHONDONTWRITEBYTECODE": "1"}),
        ({}, False, {}),
        (
            {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/own"},
            False,
            {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/own"},
        ),
    ],
)
def test_with_bytecode_keeps_bytecode_only_where_each_process_would_compile_again(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], has_bytecode: bool, expected: dict[str, str]
) -> None:
    monkeypatch.setattr(environment, "_ray_has_bytecode", lambda: has_bytecode)
    assert with_bytecode(environ, Path("/cache")) == expected
