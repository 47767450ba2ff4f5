"""Safetensors files and model folders for tests, written from numpy arrays by the format's description alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16"}


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """One safetensors file."""
    entries: dict[str, Any] = {}
    at = 0
    for name, values in tensors.items():
        dtype = NAMES.get(values.dtype, str(values.dtype).upper().replace("INT", "I"))
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    write_raw(path, json.dumps(entries).encode(), b"".join(values.tobytes() for values in tensors.values()))


def write_raw(path: Path, header: bytes, data: bytes) -> None:
    """A file with that header, whatever it says."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_shards(folder: Path, shards: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Several files and the index over them."""
    for name, tensors in shards.items():
        write_tensors(folder / name, tensors)
    places = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
