from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.model_folders import CONFIG
from tpuctl.model_folder import open_weights
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.modelspec.layout import parameters
from tpuctl.nn.weights_fit import fit
from tpuctl.nn.weights_leaves import DTYPES
from tpuctl.nn.weights_writing import write_weights
from tpuctl.safetensors import read_tensor_file

REFERENCES = sorted(path.parent for path in (Path(__file__).parent / "references").glob("*/config.json"))


def stored(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder, read by the headers alone."""
    found = {}
    for name, tensor in open_weights(str(folder)).tensors.items():
        data = Path(tensor.file).read_bytes()[tensor.start : tensor.end]
        found[name] = np.frombuffer(data, DTYPES[tensor.dtype]).reshape(tensor.shape)
    return found


def leaves_of(folder: Path, spec: Any, family: str) -> dict[str, np.ndarray]:
    """The parameters of a folder, put together piece by piece in numpy."""
    tensors = stored(folder)
    found = {}
    for path, leaf in fit(open_weights(str(folder)), spec, family=family).items():
        found[path] = np.empty(leaf.shape, np.float32)
        whole = tuple((0, size) for size in leaf.shape)
        for source in leaf.sources:
            at = source.wanted(whole)
            assert at is not None
            values = tensors[source.tensor.name].reshape(source.view)[tuple(slice(*side) for side in at)]
            source.into(found[path], whole, values, at)
    return found


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda folder: folder.name)
def test_every_family_comes_back_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    spec, family = spec_from_config(config), config["model_type"]
    leaves = leaves_of(folder, spec, family)
    write_weights(spec, str(tmp_path), family=family, dtype="F32", read=leaves.__getitem__)
    before, after = stored(folder), stored(tmp_path)
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)


def test_weights_above_the_limit_are_split_and_indexed(tmp_path: Path) -> None:
    spec = spec_from_config(CONFIG)
    random = np.random.default_rng(0)
    leaves = {path: random.normal(size=item.stacked_shape) for path, item in parameters(spec).items()}
    written = write_weights(spec, str(tmp_path), family="llama", dtype="BF16", read=leaves.__getitem__, limit=20_000)
    count = len(written.files)
    assert written.files == tuple(f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [*written.files, "model.safetensors.index.json"]
    found = open_weights(str(tmp_path))
    assert (len(found.tensors), found.num_bytes, found.dtypes) == (written.tensors, written.num_bytes, ("BF16",))
    largest = max(
        sum(t.num_bytes for t in read_tensor_file(str(tmp_path / name)).tensors.values()) for name in written.files
    )
    assert largest <= 20_480, "the embedding alone is larger than the limit, and has a file of its own"


def test_write_that_fails_leaves_no_unfinished_file(tmp_path: Path) -> None:
    spec = spec_from_config(CONFIG)
    leaves = {path: np.zeros(item.stacked_shape) for path, item in parameters(spec).items()}
    del leaves["layers/mlp/up"]
    with pytest.raises(KeyError):
        write_weights(spec, str(tmp_path), family="llama", dtype="F32", read=leaves.__getitem__)
    assert list(tmp_path.iterdir()) == []
