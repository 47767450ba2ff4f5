from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.tensor_files import write_shards, write_tensors
from tpuctl.errors import WeightsError
from tpuctl.model_folder import INDEX_FILE, fingerprint, open_weights, read_config

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS = {
    FIRST: {"a": np.zeros(3, np.float32), "z": np.zeros(1, np.float32)},
    SECOND: {"b": np.ones(3, np.float16), "c": np.ones(1, np.float16)},
}


def test_single_file_needs_no_index(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    found = open_weights(str(tmp_path))
    assert (set(found.tensors), found.num_bytes, found.dtypes) == ({"a"}, 12, ("F32",))


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS)
    found = open_weights(str(tmp_path))
    assert {name: tensor.file for name, tensor in found.tensors.items()} == {
        "a": str(tmp_path / FIRST),
        "z": str(tmp_path / FIRST),
        "b": str(tmp_path / SECOND),
        "c": str(tmp_path / SECOND),
    }


def test_missing_and_stray_shards_are_named_together(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS)
    (tmp_path / SECOND).rename(tmp_path / "model-00002-of-00030.safetensors")
    with pytest.raises(WeightsError) as caught:
        open_weights(str(tmp_path))
    assert f"names {SECOND}, not there; model-00002-of-00030.safetensors is there" in caught.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": SECOND}, f"not where the index says: a \\({SECOND}\\)"),
        ({"d": FIRST}, f"not where the index says: d \\({FIRST}\\)"),
        ({"c": None}, f"not in the index: c \\({SECOND}\\)"),
    ],
)
def test_index_that_does_not_fit_its_shards_is_refused(
    change: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    write_shards(tmp_path, SHARDS)
    places = {"a": FIRST, "z": FIRST, "b": SECOND, "c": SECOND} | change
    kept = {name: file for name, file in places.items() if file is not None}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": kept}))
    with pytest.raises(WeightsError, match=message):
        open_weights(str(tmp_path))


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS | {SECOND: {"a": np.ones(3, np.float32)}})
    places = {"a": FIRST, "z": SECOND}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(WeightsError, match="in two files: a"):
        open_weights(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no such folder, or an empty one"),
        (["config.json"], "no weights"),
        (["pytorch_model.bin"], "only pytorch_model.bin"),
        ([FIRST], f"has {FIRST}, but neither model.safetensors nor"),
    ],
)
def test_folder_without_weights_says_what_it_has(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(WeightsError, match=message):
        open_weights(str(tmp_path))


def test_folder_without_a_config_is_no_model_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no model folder: it has no config\.json"):
        read_config(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json is no JSON"):
        read_config(str(tmp_path))


def test_fingerprint_follows_the_weights_and_not_the_place(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32)
    marks = []
    for name, weights in {"one": values, "copy": values, "trained": values + np.float32(1e-3)}.items():
        (tmp_path / name).mkdir()
        write_tensors(tmp_path / name / "model.safetensors", {"a": weights})
        marks.append(fingerprint(open_weights(str(tmp_path / name))))
    assert marks[0] == marks[1] != marks[2]
