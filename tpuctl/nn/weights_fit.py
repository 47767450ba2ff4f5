"""Whether a model folder's tensors are those a model needs, and which of them make which of our parameters.

Strict: what is missing, left over or of another shape is one error that names them all. Imports no jax.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.errors import WeightsError
from tpuctl.model_folder import WeightFiles
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.naming import Stored, canonical_name, is_parameter, stored_parameters
from tpuctl.nn.weights_leaves import DTYPES, LeafFiles, Source
from tpuctl.safetensors import Tensor

_SHOWN = 5
_HEAD = "lm_head.weight"


def fit(weights: WeightFiles, spec: ModelSpec, *, family: str) -> dict[str, LeafFiles]:
    """For each parameter of the spec, by path, the stored tensors that make it.

    With a tied embedding an output head that is stored all the same is left out, as transformers does.

    Raises:
        WeightsError: names every tensor that is missing, unknown, of another shape, or stored as something else than
            16- or 32-bit floating point.
    """
    stored = stored_parameters(spec, family)
    shapes = stored_shapes(stored.values())
    found, misfits = _by_canonical_name(weights, spec, family)
    misfits.missing = [name for name in shapes if name not in found]
    misfits.unknown = [str(tensor) + _in(tensor) for name, tensor in found.items() if name not in shapes]
    for name in shapes.keys() & found.keys():
        misfits.look_at(found[name], shapes[name])
    misfits.settle(weights.uri, spec)
    return {path: _leaf(path, item, found) for path, item in stored.items()}


def stored_shapes(stored: Iterable[Stored]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint by name, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in stored:
        sizes = [math.prod(item.shape[dim] for dim in merged) for merged in item.dims]
        ends = tuple(start + size for start, size in zip(item.start, sizes, strict=True))
        for _, name in item.tensors():
            # A fused matrix ends where the last of its parts does.
            shapes[name] = tuple(map(max, ends, shapes.get(name, ends)))
    return shapes


@dataclass(kw_only=True, slots=True)
class _Misfits:
    """What is wrong with a folder's tensors, by kind."""

    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    def look_at(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Hold one tensor against the shape it should have."""
        if tensor.shape != shape:
            self.shapes.append(f"{tensor}{_in(tensor)}, not [{','.join(map(str, shape))}]")
        if tensor.dtype not in DTYPES:
            self.dtypes.append(f"{tensor}{_in(tensor)}")

    def settle(self, uri: str, spec: ModelSpec) -> None:
        """Raise them all as one error; nothing happens when there are none."""
        kinds = {
            "missing": self.missing,
            "not of this model": self.unknown,
            "there under two names": self.twice,
            "of another shape": self.shapes,
            f"of a dtype that can't be read ({', '.join(DTYPES)} can)": self.dtypes,
        }
        parts = [f"{_count(found)} {kind}: {_listed(found)}" for kind, found in kinds.items() if found]
        if parts:
            raise WeightsError(
                f"the weights in {uri} are not those of its config.json; {'; '.join(parts)}", hint=self._hint(spec)
            )

    def _hint(self, spec: ModelSpec) -> str | None:
        if self.missing == [_HEAD]:
            return "config.json says tie_word_embeddings = false; is it true of these weights?"
        if self.dtypes and not (self.missing or self.unknown or self.shapes):
            return "quantised weights are not supported: convert them to bfloat16"
        return f"config.json tells of {spec.num_layers} layers of width {spec.hidden_size}: are the weights another's?"


def _by_canonical_name(weights: WeightFiles, spec: ModelSpec, family: str) -> tuple[dict[str, Tensor], _Misfits]:
    found: dict[str, Tensor] = {}
    misfits = _Misfits()
    for name, tensor in weights.tensors.items():
        known = canonical_name(name, family)
        if not is_parameter(name) or (spec.tied_embedding and known == _HEAD):
            continue
        if known in found:
            misfits.twice.append(f"{name} and {found[known].name}")
        found[known] = tensor
    return found, misfits


def _leaf(path: str, item: Stored, found: Mapping[str, Tensor]) -> LeafFiles:
    layers = [] if item.layers is None else [len(item.layers)]
    experts = [] if item.num_experts is None else [item.num_experts]
    return LeafFiles(
        name=path,
        shape=(*layers, *experts, *item.shape),
        sources=tuple(_source(item, index, found[name]) for index, name in item.tensors()),
    )


def _source(item: Stored, place: tuple[int, ...], tensor: Tensor) -> Source:
    """The stored tensor seen with our dimensions, each merged one taken apart again."""
    view: list[int] = []
    starts: list[int] = []
    for merged, start, size in zip(item.dims, item.start, tensor.shape, strict=True):
        inner = [item.shape[dim] for dim in merged[1:]]
        view += [size // math.prod(inner), *inner]
        starts += [start // math.prod(inner), *[0] * len(inner)]
    in_file = [dim for merged in item.dims for dim in merged]
    part = tuple((start, start + item.shape[dim]) for dim, start in zip(in_file, starts, strict=True))
    order = tuple(in_file.index(dim) for dim in range(len(in_file)))
    return Source(tensor=tensor, place=place, view=tuple(view), part=part, order=order)


def _in(tensor: Tensor) -> str:
    return f" ({tensor.file.rpartition('/')[2]})"


def _count(found: Sequence[str]) -> str:
    return f"{len(found)} tensor{'s' * (len(found) > 1)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
