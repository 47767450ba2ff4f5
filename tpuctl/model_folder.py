"""A model folder as Hugging Face writes it, local or in a bucket: ``config.json``, the weights, the tokenizer.

Reads JSON files and safetensors headers, never a tensor; shared by both sides, so it imports no jax. Which tensors a
model needs is not known here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from tpuctl.errors import WeightsError
from tpuctl.safetensors import Tensor, TensorFile, read_tensor_file
from tpuctl.storage import NotFoundError, join, open_storage

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "chat_templates/tool_use.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)

_OTHER_FORMATS = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.h5", "*.msgpack")
_SHARD_PATTERN = "model*.safetensors"
_SHOWN = 5
_READERS = 16
_SAMPLES = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFiles:
    """The weights of a folder: its files in order, and every tensor by name."""

    uri: str
    files: tuple[TensorFile, ...]
    tensors: Mapping[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that occur, that of most bytes first."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_bytes
        return tuple(sorted(sizes, key=lambda dtype: -sizes[dtype]))


def read_config(uri: str) -> dict[str, Any]:
    """``config.json`` of a folder.

    Raises:
        WeightsError: there is none, or it is no JSON object.
        StorageError: it can't be read.
    """
    config = read_json(uri, CONFIG_FILE)
    if config is None:
        raise WeightsError(
            f"{uri} is no model folder: it has no {CONFIG_FILE}",
            hint="name a folder in Hugging Face's form: config.json, *.safetensors and the tokenizer's files",
        )
    return config


def read_json(uri: str, name: str) -> dict[str, Any] | None:
    """A JSON file of the folder, None where there is none; raises as ``read_config`` does."""
    file = join(uri, name)
    try:
        document = json.loads(open_storage(file).read(file).data)
    except NotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{file} is no JSON: {error}", hint="copy it again") from error
    if not isinstance(document, dict):
        raise WeightsError(f"{file} is no JSON object")
    return document


def tokenizer_files(uri: str) -> tuple[str, ...]:
    """Those of the tokenizer's files that are there, by name."""
    return tuple(name for name in TOKENIZER_FILES if open_storage(uri).exists(join(uri, name)))


def open_weights(uri: str) -> WeightFiles:
    """Every tensor of a folder, from the headers of its files: one file, or the shards that its index names.

    Raises:
        WeightsError: no weights, a shard missing or damaged, or an index that does not tell what the shards hold.
        StorageError: a file can't be read.
    """
    names = _names(uri)
    index = read_json(uri, INDEX_FILE)
    if index is None:
        file = _only_file(uri, names)
        return WeightFiles(uri=uri, files=(file,), tensors=file.tensors)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise WeightsError(f"{join(uri, INDEX_FILE)} has no weight_map from tensors to files")
    _check_names(uri, sorted(set(places.values())), names)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="headers") as pool:
        files = tuple(pool.map(read_tensor_file, [join(uri, name) for name in sorted(set(places.values()))]))
    _check_index(uri, places, files)
    return WeightFiles(uri=uri, files=files, tensors={name: t for file in files for name, t in file.tensors.items()})


def fingerprint(weights: WeightFiles) -> str:
    """What tells these weights from others, wherever they lie: a digest of all headers and of samples of the tensors.

    The samples are spread evenly over all bytes, so that weights trained on from one start differ.
    """
    digest = hashlib.sha256()
    for file in weights.files:
        digest.update(file.header)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="samples") as pool:
        for sample in pool.map(_sample, _sampled_places(weights.files)):
            digest.update(sample)
    return digest.hexdigest()[:32]


def _names(uri: str) -> list[str]:
    """Files that lie in the folder itself."""
    listed = open_storage(uri).list(uri)
    names = [name.removeprefix(uri.rstrip("/") + "/") for name in listed]
    return [name for name in names if "/" not in name]


def _only_file(uri: str, names: Sequence[str]) -> TensorFile:
    if SINGLE_FILE in names:
        return read_tensor_file(join(uri, SINGLE_FILE))
    if not names:
        raise WeightsError(f"{uri}: no such folder, or an empty one")
    shards = [name for name in names if fnmatch(name, "*.safetensors")]
    if shards:
        raise WeightsError(f"{uri} has {_listed(shards)}, but neither {SINGLE_FILE} nor {INDEX_FILE}")
    others = [name for name in names if any(fnmatch(name, pattern) for pattern in _OTHER_FORMATS)]
    found = f"only {_listed(others)}" if others else "no weights"
    raise WeightsError(f"{uri} has no {SINGLE_FILE} and no {INDEX_FILE}: {found}", hint="convert it to safetensors")


def _check_names(uri: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    """The index and the folder must agree on the files; a stale index is how half a model is loaded."""
    missing = [name for name in wanted if name not in names]
    stray = [name for name in names if fnmatch(name, _SHARD_PATTERN) and name not in wanted]
    parts = [f"{INDEX_FILE} names {_listed(missing)}, not there"] if missing else []
    parts += [f"{_listed(stray)} is there, but not in {INDEX_FILE}"] if stray else []
    if parts:
        hint = "copy the missing files" if missing and not stray else "one of the two is stale: copy the folder again"
        raise WeightsError(f"{uri}: {'; '.join(parts)}", hint=hint)


def _check_index(uri: str, places: Mapping[str, str], files: Sequence[TensorFile]) -> None:
    held = [(tensor.name, file.uri.rpartition("/")[2]) for file in files for tensor in file.tensors.values()]
    where = dict(held)
    twice = [name for name, count in Counter(name for name, _ in held).items() if count > 1]
    astray = [f"{name} ({file})" for name, file in places.items() if where.get(name) != file]
    unlisted = [f"{name} ({file})" for name, file in held if name not in places]
    parts = [f"in two files: {_listed(twice)}"] if twice else []
    parts += [f"not where the index says: {_listed(astray)}"] if astray else []
    parts += [f"not in the index: {_listed(unlisted)}"] if unlisted else []
    if parts:
        message = f"{join(uri, INDEX_FILE)} does not fit the shards; {'; '.join(parts)}"
        raise WeightsError(message, hint="copy the folder again")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _sampled_places(files: Sequence[TensorFile]) -> list[tuple[str, int]]:
    total = sum(file.size for file in files)
    places, before = [], 0
    for file in files:
        wanted = [at * total // _SAMPLES for at in range(_SAMPLES)]
        places += [(file.uri, at - before) for at in wanted if before <= at < before + file.size]
        before += file.size
    return places


def _sample(place: tuple[str, int]) -> bytes:
    uri, start = place
    return open_storage(uri).read_range(uri, start, start + _SAMPLE_BYTES)
