"""The very step of the engine, compiled for TPU slices that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.tpu_aot.engine_program import CASES

pytestmark = [pytest.mark.tpu_aot]
pytest.importorskip("libtpu", reason="libtpu is not installed: nothing can compile for TPU (pip install libtpu)")


@pytest.mark.parametrize("name", CASES)
def test_step_compiles_with_the_kernel_in_each_layer_and_pages_in_place(name: str) -> None:
    report = _compiled(name)
    print(name, report)
    assert report["kernels"] >= 1
    assert report["temp_bytes"] < report["page_bytes"] / 2, "the pages are copied"
    assert report["alias_bytes"] >= report["page_bytes"]


def _compiled(name: str) -> dict[str, Any]:
    """In a process of its own: libtpu ends a process on shapes it does not like."""
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    command = [sys.executable, "-m", "tests.tpu_aot.engine_program", name]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
