"""Parameters into the weights of a model folder, one leaf in memory at a time. Imports no jax."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from tpuctl.model_folder import INDEX_FILE, SINGLE_FILE
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.naming import Stored, stored_parameters
from tpuctl.nn.weights_fit import stored_shapes
from tpuctl.nn.weights_leaves import DTYPES
from tpuctl.safetensors import ITEM_BYTES, TensorFile, lay_out
from tpuctl.storage import is_gcs, join, open_storage

FILE_BYTES = 5_000_000_000
"""Tensors of one file; more are split into several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenWeights:
    """What was written: names of files, and how much."""

    files: tuple[str, ...]
    tensors: int
    num_bytes: int


def write_weights(
    spec: ModelSpec, folder: str, *, family: str, dtype: str, read: Callable[[str], np.ndarray], limit: int = FILE_BYTES
) -> WrittenWeights:
    """Write all parameters as the tensors of a family.

    Args:
        spec: The model.
        folder: Where to, local or ``gs://``.
        family: The ``model_type`` that names the tensors.
        dtype: Of the tensors, in safetensors' words: F32, BF16 or F16.
        read: Gives a parameter by its path, whole. Asked once for each, and again for none before the last is written.
        limit: Bytes of tensors in one file.

    Raises:
        StorageError: the folder can't be written to.
    """
    stored = stored_parameters(spec, family)
    shapes = stored_shapes(stored.values())
    order = [name for group in _groups(stored) for name in dict.fromkeys(_names(group))]
    files = _files(folder, {name: (dtype, shapes[name]) for name in order}, limit=limit)
    with _Writer(folder, files) as writer:
        for group in _groups(stored):
            leaves = {path: read(path) for path in group}
            for name, values in _tensors(group, leaves, shapes, DTYPES[dtype]):
                writer.write(name, values)
    total = sum(tensor.num_bytes for file in files for tensor in file.tensors.values())
    if len(files) > 1:
        _write_index(folder, files, total)
    return WrittenWeights(files=tuple(_name(file) for file in files), tensors=len(order), num_bytes=total)


def _groups(stored: Mapping[str, Stored]) -> list[dict[str, Stored]]:
    """Parameters that are stored in the same tensors, as families that fuse matrices do; most stand alone."""
    groups: dict[str, dict[str, Stored]] = {}
    for path, item in stored.items():
        groups.setdefault(next(item.tensors())[1], {})[path] = item
    return list(groups.values())


def _names(group: Mapping[str, Stored]) -> Iterator[str]:
    return (name for item in group.values() for _, name in item.tensors())


def _tensors(
    group: Mapping[str, Stored],
    leaves: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[Any],
) -> Iterator[tuple[str, np.ndarray]]:
    for rows in zip(*(item.tensors() for item in group.values()), strict=True):
        name = rows[0][1]
        values = np.empty(shapes[name], dtype)
        for (path, item), (index, _) in zip(group.items(), rows, strict=True):
            part = item.to_stored(leaves[path][index])
            place = tuple(slice(start, start + size) for start, size in zip(item.start, part.shape, strict=True))
            values[place] = part
        yield name, values


def _files(folder: str, wanted: Mapping[str, tuple[str, tuple[int, ...]]], *, limit: int) -> list[TensorFile]:
    parts: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    room = limit
    for name, (dtype, shape) in wanted.items():
        size = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
        if size > room and parts[-1]:
            parts.append({})
            room = limit
        parts[-1][name] = (dtype, shape)
        room -= size
    count = len(parts)
    names = [SINGLE_FILE] if count == 1 else [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    return [lay_out(join(folder, name), part) for name, part in zip(names, parts, strict=True)]


def _write_index(folder: str, files: list[TensorFile], total: int) -> None:
    places = {name: _name(file) for file in files for name in file.tensors}
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    uri = join(folder, INDEX_FILE)
    open_storage(uri).write(uri, (json.dumps(document, indent=2) + "\n").encode())


def _name(file: TensorFile) -> str:
    return file.uri.rpartition("/")[2]


class _Writer:
    """Writes the tensors of several files in their order; a file is under its name only once it is whole."""

    def __init__(self, folder: str, files: list[TensorFile]) -> None:
        self._files = iter(files)
        self._left: list[str] = []
        self._file: TensorFile | None = None
        self._output: BinaryIO | None = None
        if not is_gcs(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
        # Beside its place, so that a local file need only be renamed.
        self._staging = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=None if is_gcs(folder) else folder))

    def __enter__(self) -> Self:
        return self

    def write(self, name: str, values: np.ndarray) -> None:
        """The next tensor."""
        if not self._left:
            self._begin()
        assert self._output is not None
        assert self._left[0] == name, "tensors come in the order of the files"
        self._left.pop(0)
        self._output.write(values.reshape(-1).view(np.uint8).data)
        if not self._left:
            self._end()

    def _begin(self) -> None:
        self._file = next(self._files)
        self._left = list(self._file.tensors)
        self._output = self._part.open("wb")
        self._output.write(self._file.header)

    def _end(self) -> None:
        assert self._output is not None
        assert self._file is not None
        self._output.close()
        if is_gcs(self._file.uri):
            open_storage(self._file.uri).put_file(self._part, self._file.uri)
            self._part.unlink()
        else:
            os.replace(self._part, self._file.uri)

    @property
    def _part(self) -> Path:
        assert self._file is not None
        return self._staging / _name(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._output is not None:
            self._output.close()
        shutil.rmtree(self._staging, ignore_errors=True)
