"""Two processes with four devices each load what one with eight does, and half of the bytes each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.weights_host import answers, start
from tpuctl.storage import open_storage

BUCKET = "gs://tpu-test/model"
OPTIONS = {"dtype": "float32", "digests": True}
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The folder, the bytes of its tensors, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("model")
    tensors = write_model(folder, config=CONFIG | SIZES, dtype=np.float16)
    one = answers(start({"folder": str(folder)} | OPTIONS, processes=1, devices=8))[0]
    return {"folder": folder, "bytes": sum(values.nbytes for values in tensors.values()), "one": one}


def test_two_hosts_hold_what_one_does_and_map_what_they_need_of_a_file(model: dict[str, Any]) -> None:
    hosts = answers(start({"folder": str(model["folder"])} | OPTIONS, processes=2, devices=4))
    assert hosts[0]["digests"] | hosts[1]["digests"] == model["one"]["digests"]
    assert [host["bytes_read"] for host in hosts] == [2 * host["needed_elements"] for host in hosts]
    assert model["one"]["bytes_read"] == model["bytes"]


def test_two_hosts_hold_what_one_does_and_share_the_reading_of_a_bucket(model: dict[str, Any], gcs: Emulator) -> None:
    for path in model["folder"].iterdir():
        open_storage(BUCKET).put_file(path, f"{BUCKET}/{path.name}")
    hosts = answers(start({"folder": BUCKET} | OPTIONS, processes=2, devices=4))
    assert hosts[0]["digests"] | hosts[1]["digests"] == model["one"]["digests"]
    for host in hosts:
        assert host["bytes_read"] <= 1.05 * 2 * host["needed_elements"], "its devices need a strip of every row"
        assert host["bytes_read"] < 0.55 * model["bytes"]


@pytest.mark.slow
def test_two_hosts_notice_a_damaged_byte_that_one_of_them_was_sent(model: dict[str, Any], gcs: Emulator) -> None:
    for path in model["folder"].iterdir():
        open_storage(BUCKET).put_file(path, f"{BUCKET}/{path.name}")
    # Both read the header first, and one of them a piece of the embedding twelve reads later.
    fault = gcs.fail(op="read", name=r"\.safetensors$", skip=12, corrupt=True)
    started = start({"folder": BUCKET} | OPTIONS, processes=2, devices=4, stderr=True)
    said = [process.communicate(timeout=600)[1] for process in started]
    assert fault.hits == 1
    assert all("model.safetensors: its bytes arrived damaged" in text for text in said), said
