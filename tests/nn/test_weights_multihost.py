"""Two processes with four devices each load one folder: what one process with eight loads, and half of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.weights_host import answers, start

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model")
    tensors = write_model(folder, config=CONFIG | SIZES, dtype=np.float16)
    options = {"folder": str(folder), "dtype": "float32", "digests": True}
    two, one = start(options, processes=2, devices=4), start(options, processes=1, devices=8)
    return {"two": answers(two), "one": answers(one)[0], "bytes": sum(values.nbytes for values in tensors.values())}


def test_two_hosts_hold_what_one_host_does(loaded: dict[str, Any]) -> None:
    both: dict[str, str] = {}
    for host in loaded["two"]:
        both |= host["digests"]
    assert both == loaded["one"]["digests"]


def test_each_host_reads_what_its_devices_need_though_that_is_strips_of_columns(loaded: dict[str, Any]) -> None:
    for host in loaded["two"]:
        assert host["bytes_read"] <= 1.05 * 2 * host["needed_elements"]
        assert host["bytes_read"] < 0.55 * loaded["bytes"]
    assert loaded["one"]["bytes_read"] == loaded["bytes"]
