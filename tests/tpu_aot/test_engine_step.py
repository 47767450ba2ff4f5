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


@pytest.mark.parametrize("name", ["one-chip", "heads-of-64", "windows", "three-key-heads"])
def test_fp8_pages_are_half_as_large_and_read_and_written_as_they_lie(name: str) -> None:
    plain, narrow = _compiled(name), _compiled(name, "--kv", "fp8")
    print(name, plain, narrow)
    assert narrow["kernels"] == plain["kernels"]
    assert narrow["page_bytes"] * 2 == plain["page_bytes"]
    assert plain["argument_bytes"] - narrow["argument_bytes"] == pytest.approx(narrow["page_bytes"], rel=0.01), "padded"
    assert narrow["alias_bytes"] >= narrow["page_bytes"]
    assert narrow["temp_bytes"] < narrow["page_bytes"] / 2, "the pages are copied"
    assert narrow["as_large_as_pages"] == ["f8e4m3fn"], "the pages are converted"


def test_int8_weights_halve_what_a_step_holds_and_reads_of_a_large_model() -> None:
    plain, quantised = _compiled("qwen3-4b"), _compiled("qwen3-4b", "--weights", "int8")
    print(plain, quantised)
    # All but the embedding, a tenth of the model.
    assert quantised["weight_bytes"] < 0.56 * plain["weight_bytes"]
    saved = plain["weight_bytes"] - quantised["weight_bytes"]
    assert plain["argument_bytes"] - quantised["argument_bytes"] == pytest.approx(saved, rel=0.01), "padded"
    # What a layer cuts out of the stack it cuts out as it lies: nothing is converted but on the way into a product.
    assert (plain["copied"], quantised["copied"]) == (["bf16"], ["s8"])
    assert quantised["temp_bytes"] < 1.01 * plain["temp_bytes"]


def _compiled(*name: str) -> dict[str, Any]:
    """In a process of its own: libtpu ends a process on shapes it does not like."""
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    command = [sys.executable, "-m", "tests.tpu_aot.engine_program", *name]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
