from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.tensor_files import write_raw, write_tensors
from tpuctl.errors import WeightsError
from tpuctl.safetensors import lay_out, read_tensor_file


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_header_tells_dtype_shape_and_bytes_of_each_tensor(tmp_path: Path) -> None:
    path, one, two = tmp_path / "x.safetensors", np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(4, np.float16)
    write_tensors(path, {"one": one, "two": two, "none": np.zeros((0, 5), np.float32)})
    found = read_tensor_file(str(path)).tensors
    assert {name: (t.dtype, t.shape, t.num_bytes) for name, t in found.items()} == {
        "one": ("F32", (2, 3), 24),
        "two": ("F16", (4,), 8),
        "none": ("F32", (0, 5), 0),
    }
    data = path.read_bytes()
    assert data[found["one"].start : found["one"].end] == one.tobytes()


def test_header_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {f"a.rather.long.tensor.name.{i}": np.zeros(1, np.float32) for i in range(2000)})
    assert len(read_tensor_file(str(path)).tensors) == 2000


@pytest.mark.parametrize(
    ("document", "data", "message"),
    [
        (b"[]", b"", "no table of tensors"),
        (b"{", b"", "no JSON"),
        (b'{"a": 1, "a": 2}', b"", "'a' stands in it twice"),
        ({"a": 5}, b"", "no dtype, shape and byte range of tensor a"),
        ({"a": entry(shape=[-1])}, b"", "no dtype, shape and byte range of tensor a"),
        ({"a": entry(shape=[True])}, b"", "no dtype, shape and byte range of tensor a"),
        ({"a": entry(offsets=[0])}, b"", "no dtype, shape and byte range of tensor a"),
        ({"a": entry(dtype="F31")}, bytes(8), "tensor a has the unknown dtype F31"),
        ({"a": entry(dtype="F16")}, bytes(8), r"tensor a is F16\[2\], 4 bytes, but has 8"),
        ({"a": entry(offsets=[8, 0])}, bytes(8), "8 bytes, but has -8"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12), "tensor b overlaps tensor a"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20), "4 bytes before tensor b belong to no tensor"),
        ({"a": entry()}, bytes(7), "truncated: .* tensor a ends at byte"),
        ({"a": entry()}, bytes(9), "1 bytes after tensor a belong to no tensor"),
    ],
)
def test_damaged_header_is_refused_naming_file_and_tensor(
    document: Any, data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, document if isinstance(document, bytes) else json.dumps(document).encode(), data)
    with pytest.raises(WeightsError, match=message) as caught:
        read_tensor_file(str(path))
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are no safetensors file"),
        (b"\x10\0\0\0\0\0\0\0{}", "truncated: 10 bytes, and its header alone ends at byte 24"),
        (b"PK\x03\x04 a zip of pickles, say", "its header would be"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    ],
)
def test_file_of_another_kind_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_tensor_file(str(path))


def test_file_laid_out_reads_back_as_laid_out(tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    file = lay_out(path, {"a": ("BF16", (3, 5)), "b": ("F32", ()), "c": ("F32", (0,))})
    Path(path).write_bytes(file.header + bytes(file.size - len(file.header)))
    assert len(file.header) % 8 == 0
    assert read_tensor_file(path).tensors == file.tensors
