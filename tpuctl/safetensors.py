"""Safetensors files from the outside: which tensors a file holds, and at which bytes. Reads headers only.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name → dtype, shape, byte range), then
the tensors' bytes, back to back. Both sides read headers with this module, so it imports neither jax nor numpy.
Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import WeightsError
from tpuctl.storage import open_storage

# Bytes of one element. Of these a model is made of the floating ones of 16 bits and more; the rest is named in errors.
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

# What the format itself allows; a longer one is no header, but the first bytes of some other file.
LARGEST_HEADER_BYTES = 100_000_000

_LENGTH_BYTES = 8
_FIRST_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One tensor of a file; ``start`` and ``end`` are its bytes, counted from the start of the file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFile:
    """One safetensors file: its tensors by name, and what identifies it; ``crc32c`` where its storage keeps one."""

    uri: str
    size: int
    generation: str
    header: bytes
    tensors: Mapping[str, Tensor]
    crc32c: int | None = None

    @property
    def beginning(self) -> bytes:
        """The file up to its first tensor."""
        return len(self.header).to_bytes(_LENGTH_BYTES, "little") + self.header


def read_tensor_file(uri: str) -> TensorFile:
    """The header of a file, held against the file's size.

    Raises:
        NotFoundError: there is no such file.
        WeightsError: no safetensors file, or a damaged or truncated one; names the file and the tensor.
        StorageError: it can't be read.
    """
    storage = open_storage(uri)
    stat = storage.stat(uri)
    begin = storage.read_range(uri, 0, min(stat.size, _FIRST_READ_BYTES))
    length = _header_length(uri, begin, stat.size)
    header = begin[_LENGTH_BYTES : _LENGTH_BYTES + length]
    if len(header) < length:
        header += storage.read_range(uri, _LENGTH_BYTES + len(header), _LENGTH_BYTES + length)
    tensors = _tensors(uri, _parsed(uri, header), origin=_LENGTH_BYTES + length)
    _check_ranges(uri, list(tensors.values()), origin=_LENGTH_BYTES + length, size=stat.size)
    return TensorFile(
        uri=uri, size=stat.size, generation=stat.generation, header=header, tensors=tensors, crc32c=stat.crc32c
    )


def lay_out(uri: str, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> TensorFile:
    """A file to be written: its header with the length before it, and the places of tensors of (dtype, shape)."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file without it
    at = 0
    for name, (dtype, shape) in wanted.items():
        end = at + math.prod(shape) * ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH_BYTES)
    origin = _LENGTH_BYTES + len(header)
    return TensorFile(
        uri=uri,
        size=origin + at,
        generation="",
        header=len(header).to_bytes(_LENGTH_BYTES, "little") + header,
        tensors=_tensors(uri, entries, origin=origin),
    )


def _header_length(uri: str, begin: bytes, size: int) -> int:
    if size < _LENGTH_BYTES:
        raise WeightsError(f"{uri}: {size} bytes are no safetensors file", hint="copy it again")
    length = int.from_bytes(begin[:_LENGTH_BYTES], "little")
    if begin.startswith(b"version https://git-lfs"):
        raise WeightsError(f"{uri} is a Git LFS pointer, not the weights", hint="fetch them with git lfs pull")
    if length > LARGEST_HEADER_BYTES:
        raise WeightsError(f"{uri} is no safetensors file: its header would be {length} bytes long")
    if _LENGTH_BYTES + length > size:
        raise WeightsError(
            f"{uri} is truncated: {size} bytes, and its header alone ends at byte {_LENGTH_BYTES + length}",
            hint="copy it again",
        )
    return length


def _parsed(uri: str, header: bytes) -> dict[str, Any]:
    try:
        document = json.loads(header, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{uri}: the header is no JSON ({error})", hint="copy it again") from error
    if not isinstance(document, dict):
        raise WeightsError(f"{uri}: the header is no table of tensors")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands in it twice")
    return table


def _tensors(uri: str, document: dict[str, Any], *, origin: int) -> dict[str, Tensor]:
    return {
        name: _tensor(uri, name, entry, origin=origin) for name, entry in document.items() if name != "__metadata__"
    }


def _tensor(uri: str, name: str, entry: Any, *, origin: int) -> Tensor:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise WeightsError(f"{uri}: the header tells no dtype, shape and byte range of tensor {name}")
    if dtype not in ITEM_BYTES:
        raise WeightsError(f"{uri}: tensor {name} has the unknown dtype {dtype}")
    start, end = offsets
    expected = math.prod(shape) * ITEM_BYTES[dtype]
    if end - start != expected:
        described = f"{dtype}{shape}".replace(" ", "")
        raise WeightsError(f"{uri}: tensor {name} is {described}, {expected} bytes, but has {end - start}")
    return Tensor(name=name, file=uri, dtype=dtype, shape=tuple(shape), start=origin + start, end=origin + end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_ranges(uri: str, tensors: list[Tensor], *, origin: int, size: int) -> None:
    """Back to back from the header to the end of the file: what overlaps, leaves a hole or lies beyond is damage."""
    at, before = origin, "the header"
    for tensor in sorted(tensors, key=lambda item: (item.start, item.end)):
        if tensor.start < at:
            raise WeightsError(f"{uri}: tensor {tensor.name} overlaps {before}")
        if tensor.start > at:
            raise WeightsError(f"{uri}: {tensor.start - at} bytes before tensor {tensor.name} belong to no tensor")
        at, before = tensor.end, f"tensor {tensor.name}"
        if at > size:
            raise WeightsError(
                f"{uri} is truncated: {size} bytes, but tensor {tensor.name} ends at byte {at}", hint="copy it again"
            )
    if at < size:
        raise WeightsError(f"{uri}: {size - at} bytes after {before} belong to no tensor")
