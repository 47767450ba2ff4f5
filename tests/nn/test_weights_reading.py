from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.fakes.tensor_files import write_tensors
from tpuctl.errors import WeightsError
from tpuctl.nn.weights_boxes import full
from tpuctl.nn.weights_leaves import LeafFiles, Source
from tpuctl.nn.weights_reading import Reader
from tpuctl.safetensors import Tensor, read_tensor_file

LAYERS, HEADS, WIDTH, HIDDEN = 3, 4, 6, 16
SHAPE = (LAYERS, HIDDEN, HEADS, WIDTH)


def projections(folder: Path, dtype: Any) -> tuple[LeafFiles, np.ndarray]:
    """Query projections as Hugging Face has them, [heads · width, hidden] per layer, and the leaf they make."""
    random = np.random.default_rng(0)
    stored = {f"q.{i}": random.normal(size=(HEADS * WIDTH, HIDDEN)).astype(dtype) for i in range(LAYERS)}
    write_tensors(folder / "x.safetensors", {"before": np.zeros(3, np.float16), **stored})
    tensors = read_tensor_file(str(folder / "x.safetensors")).tensors
    sources = tuple(source(tensors[f"q.{i}"], i) for i in range(LAYERS))
    wanted = [stored[f"q.{i}"].reshape(HEADS, WIDTH, HIDDEN).transpose(2, 0, 1) for i in range(LAYERS)]
    return LeafFiles(name="query", shape=SHAPE, sources=sources), np.stack(wanted)


def source(tensor: Tensor, layer: int) -> Source:
    view = (HEADS, WIDTH, HIDDEN)
    return Source(tensor=tensor, place=(layer,), view=view, part=full(view), order=(2, 0, 1))


def sharding(*spec: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor")), PartitionSpec(*spec))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "spec", [(), (None, "fsdp", "tensor"), (None, None, ("tensor", "fsdp")[:1], None), (None, ("tensor", "fsdp"))]
)
def test_leaf_is_the_stored_tensors_turned_and_stacked_on_any_sharding(spec: Any, dtype: Any, tmp_path: Path) -> None:
    leaf, wanted = projections(tmp_path, dtype)
    reader = Reader(str(tmp_path))
    found = reader.read(leaf, sharding(*spec), np.dtype(np.float32))
    reader.close()
    assert found.dtype == np.float32
    assert found.sharding == sharding(*spec)
    np.testing.assert_array_equal(np.asarray(found), wanted.astype(np.float32))
    assert reader.bytes_read == wanted.nbytes, "each byte once, though every device wants a strip of every row"


def test_float32_is_rounded_to_the_nearest_bfloat16(tmp_path: Path) -> None:
    leaf, wanted = projections(tmp_path, np.float32)
    reader = Reader(str(tmp_path))
    found = reader.read(leaf, sharding(None, "fsdp"), np.dtype(ml_dtypes.bfloat16))
    reader.close()
    np.testing.assert_array_equal(np.asarray(found), np.asarray(jax.numpy.asarray(wanted).astype("bfloat16")))


def test_devices_that_hold_copies_share_no_memory(tmp_path: Path) -> None:
    leaf, _ = projections(tmp_path, np.float32)
    reader = Reader(str(tmp_path))
    found = reader.read(leaf, sharding(), np.dtype(np.float32))
    reader.close()
    places = {shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards}
    assert len(places) == len(jax.devices())


def test_part_of_a_fused_tensor_makes_a_leaf(tmp_path: Path) -> None:
    fused = np.arange(12 * 5, dtype=np.float32).reshape(12, 5)
    write_tensors(tmp_path / "x.safetensors", {"qkv": fused})
    tensor = read_tensor_file(str(tmp_path / "x.safetensors")).tensors["qkv"]
    part = Source(tensor=tensor, place=(), view=(12, 5), part=((4, 8), (0, 5)), order=(1, 0))
    reader = Reader(str(tmp_path))
    found = reader.read(LeafFiles(name="k", shape=(5, 4), sources=(part,)), sharding(None, "fsdp"), np.dtype("f4"))
    reader.close()
    np.testing.assert_array_equal(np.asarray(found), fused[4:8].T)
    assert reader.bytes_read == 4 * 5 * 4


def test_file_that_shrank_meanwhile_names_file_and_tensor(tmp_path: Path) -> None:
    leaf, _ = projections(tmp_path, np.float32)
    with (tmp_path / "x.safetensors").open("r+b") as file:
        file.truncate(600)
    reader = Reader(str(tmp_path))
    with pytest.raises(WeightsError, match=r"x\.safetensors ends within tensor q\.0"):
        reader.read(leaf, sharding(), np.dtype(np.float32))
    reader.close()
