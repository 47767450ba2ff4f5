"""Where each parameter stands in a Hugging Face checkpoint: names, and how the stored dimensions map to ours.

Data and the arithmetic on it; opens no file and knows no jax. A stored tensor holds one layer (and one expert) of a
parameter, or a part of it holds one where a family fuses matrices.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.layout import Parameter, parameters

type Box = tuple[slice, ...]

# Buffers of older versions, and what lies beside the decoder in a checkpoint for text and images.
_NOT_PARAMETERS = re.compile(
    r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|^(model\.)?(vision_tower|multi_modal_projector)\."
)
_WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """How one of our parameters is stored.

    Attributes:
        name: Of a stored tensor, with ``{layer}`` and ``{expert}`` where the parameter has more than one.
        shape: Of our parameter in one stored tensor, that is without its layer and expert axes.
        dims: For each dimension of the stored tensor, which of ours it is; several are merged, the first outermost.
        start: Where our part begins along each dimension of the stored tensor: 0, but for fused matrices.
        layers: Layers our first axis stands for, or ``None`` where it is no axis of layers.
        num_experts: Length of the axis of experts that follows, or ``None`` where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    start: tuple[int, ...]
    layers: tuple[int, ...] | None = None
    num_experts: int | None = None

    def tensors(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """Every stored tensor: its index along our leading axes (of layers and experts), and its name."""
        axes = [] if self.layers is None else [range(len(self.layers))]
        axes += [] if self.num_experts is None else [range(self.num_experts)]
        for index in itertools.product(*axes):
            layer = self.layers[index[0]] if self.layers is not None else None
            yield index, self.name.format(layer=layer, expert=index[-1] if index else None)

    def box(self, index: Box) -> Box:
        """The part of a stored tensor that holds ``ours[index]``, a box of one layer and expert.

        Raises:
            ValueError: that part is not a box: a merged dimension is cut along an inner one of ours.
        """
        spans = [piece.indices(size)[:2] for piece, size in zip(index, self.shape, strict=True)]
        return tuple(self._span(merged, start, spans) for merged, start in zip(self.dims, self.start, strict=True))

    def to_ours(self, piece: Any) -> Any:
        """An array read from ``box``, with our dimensions."""
        order = [dim for merged in self.dims for dim in merged]
        sizes = [
            size for merged, size in zip(self.dims, piece.shape, strict=True) for size in self._split(merged, size)
        ]
        return piece.reshape(sizes).transpose([order.index(dim) for dim in range(len(order))])

    def to_stored(self, ours: Any) -> Any:
        """An array of ours, of one layer and expert, with the stored dimensions; of a fused matrix its part."""
        turned = ours.transpose([dim for merged in self.dims for dim in merged])
        return turned.reshape([math.prod(ours.shape[dim] for dim in merged) for merged in self.dims])

    def _span(self, merged: tuple[int, ...], start: int, spans: list[tuple[int, int]]) -> slice:
        inner = math.prod(self.shape[dim] for dim in merged[1:])
        if any(spans[dim] != (0, self.shape[dim]) for dim in merged[1:]):
            raise ValueError(
                f"{self.name}: dimensions {merged} of {self.shape} are stored as one, and cut along an inner one"
            )
        first, last = spans[merged[0]]
        return slice(start + first * inner, start + last * inner)

    def _split(self, merged: tuple[int, ...], size: int) -> list[int]:
        inner = [self.shape[dim] for dim in merged[1:]]
        return [size // math.prod(inner), *inner]


def stored_parameters(spec: ModelSpec, model_type: str) -> dict[str, Stored]:
    """For each path in the tree of parameters, how a checkpoint of this ``model_type`` stores it.

    Raises:
        KeyError: no such family, or it has no name for a parameter of this spec.
    """
    table = _FAMILIES[model_type]
    return {path: _stored(table[path], parameter, spec) for path, parameter in parameters(spec).items()}


def canonical_name(name: str, model_type: str) -> str:
    """A tensor's name as ``stored_parameters`` has it, whatever wrapper the checkpoint was saved from."""
    root = "transformer." if model_type == "gpt2" else "model."
    for wrapper in (*_WRAPPERS, root):
        if name.startswith(wrapper):
            name = name.removeprefix(wrapper)
            break
    return name if name.startswith("lm_head.") else root + name


def is_parameter(name: str) -> bool:
    """Whether a stored tensor may be a parameter of a decoder at all, or is a buffer or belongs to another part."""
    return _NOT_PARAMETERS.search(name) is None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row of a family's table. In a fused matrix it begins ``after`` others, along stored dimension ``along``."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    after: tuple[str, ...] = ()
    along: int = 0


def _stored(entry: _Entry, parameter: Parameter, spec: ModelSpec) -> Stored:
    has_experts = "{expert}" in entry.name
    before = sum(_fused_size(name, spec) for name in entry.after)
    return Stored(
        name=entry.name,
        shape=parameter.shape[1:] if has_experts else parameter.shape,
        dims=entry.dims,
        start=tuple(before if dim == entry.along else 0 for dim in range(len(entry.dims))),
        layers=parameter.layers,
        num_experts=parameter.shape[0] if has_experts else None,
    )


def _fused_size(name: str, spec: ModelSpec) -> int:
    """Columns of a matrix from the residual stream."""
    heads = {"query": spec.num_heads, "key": spec.num_kv_heads, "value": spec.num_kv_heads}
    return heads[name] * spec.head_dim if name in heads else spec.mlp_size


# How two or three dimensions of ours are stored. A linear layer is stored [out, in], and every matrix of ours has the
# residual stream first; heads and the size of a head are one dimension there.
_VECTOR = ((0,),)
_SAME = ((0,), (1,))
_TURNED = ((1,), (0,))
_HEADS_VECTOR = ((0, 1),)
_FROM_HEADS = ((0,), (1, 2))
_TO_HEADS = ((1, 2), (0,))

_LAYER = "model.layers.{layer}."
_NORM = (("scale", "weight"), ("bias", "bias"))


def _linear(
    path: str, name: str, dims: tuple[tuple[int, ...], ...], bias: tuple[tuple[int, ...], ...]
) -> dict[str, _Entry]:
    return {path: _Entry(f"{name}.weight", dims), f"{path}_bias": _Entry(f"{name}.bias", bias)}


def _norms(names: dict[str, str]) -> dict[str, _Entry]:
    return {
        f"{path}/{ours}": _Entry(f"{name}.{theirs}", _VECTOR) for path, name in names.items() for ours, theirs in _NORM
    }


_LLAMA = {
    "embedding": _Entry("model.embed_tokens.weight", _SAME),
    "head": _Entry("lm_head.weight", _TURNED),
    **_norms(
        {
            "final_norm": "model.norm",
            "layers/attention_norm": f"{_LAYER}input_layernorm",
            "layers/mlp_norm": f"{_LAYER}post_attention_layernorm",
            "layers/attention/query_norm": f"{_LAYER}self_attn.q_norm",
            "layers/attention/key_norm": f"{_LAYER}self_attn.k_norm",
        }
    ),
    **_linear("layers/attention/query", f"{_LAYER}self_attn.q_proj", _TO_HEADS, _HEADS_VECTOR),
    **_linear("layers/attention/key", f"{_LAYER}self_attn.k_proj", _TO_HEADS, _HEADS_VECTOR),
    **_linear("layers/attention/value", f"{_LAYER}self_attn.v_proj", _TO_HEADS, _HEADS_VECTOR),
    **_linear("layers/attention/out", f"{_LAYER}self_attn.o_proj", _FROM_HEADS, _VECTOR),
    **_linear("layers/mlp/gate", f"{_LAYER}mlp.gate_proj", _TURNED, _VECTOR),
    **_linear("layers/mlp/up", f"{_LAYER}mlp.up_proj", _TURNED, _VECTOR),
    **_linear("layers/mlp/down", f"{_LAYER}mlp.down_proj", _SAME, _VECTOR),
}

_GEMMA = _LLAMA | _norms(
    {
        "layers/attention_out_norm": f"{_LAYER}post_attention_layernorm",
        "layers/mlp_norm": f"{_LAYER}pre_feedforward_layernorm",
        "layers/mlp_out_norm": f"{_LAYER}post_feedforward_layernorm",
    }
)

_QWEN3_MOE = _LLAMA | {
    "layers/experts/router": _Entry(f"{_LAYER}mlp.gate.weight", _TURNED),
    "layers/experts/gate": _Entry(f"{_LAYER}mlp.experts.{{expert}}.gate_proj.weight", _TURNED),
    "layers/experts/up": _Entry(f"{_LAYER}mlp.experts.{{expert}}.up_proj.weight", _TURNED),
    "layers/experts/down": _Entry(f"{_LAYER}mlp.experts.{{expert}}.down_proj.weight", _SAME),
}

_MIXTRAL = _LLAMA | {
    "layers/experts/router": _Entry(f"{_LAYER}block_sparse_moe.gate.weight", _TURNED),
    "layers/experts/gate": _Entry(f"{_LAYER}block_sparse_moe.experts.{{expert}}.w1.weight", _TURNED),
    "layers/experts/up": _Entry(f"{_LAYER}block_sparse_moe.experts.{{expert}}.w3.weight", _TURNED),
    "layers/experts/down": _Entry(f"{_LAYER}block_sparse_moe.experts.{{expert}}.w2.weight", _SAME),
}

_PHI3 = _LLAMA | {
    "layers/attention/query": _Entry(f"{_LAYER}self_attn.qkv_proj.weight", _TO_HEADS),
    "layers/attention/key": _Entry(f"{_LAYER}self_attn.qkv_proj.weight", _TO_HEADS, ("query",)),
    "layers/attention/value": _Entry(f"{_LAYER}self_attn.qkv_proj.weight", _TO_HEADS, ("query", "key")),
    "layers/mlp/gate": _Entry(f"{_LAYER}mlp.gate_up_proj.weight", _TURNED),
    "layers/mlp/up": _Entry(f"{_LAYER}mlp.gate_up_proj.weight", _TURNED, ("gate",)),
}

_BLOCK = "transformer.h.{layer}."

# GPT-2's linear layers are stored [in, out].
_GPT2 = {
    "embedding": _Entry("transformer.wte.weight", _SAME),
    "position_embedding": _Entry("transformer.wpe.weight", _SAME),
    "head": _Entry("lm_head.weight", _TURNED),
    **_norms(
        {
            "final_norm": "transformer.ln_f",
            "layers/attention_norm": f"{_BLOCK}ln_1",
            "layers/mlp_norm": f"{_BLOCK}ln_2",
        }
    ),
    "layers/attention/query": _Entry(f"{_BLOCK}attn.c_attn.weight", _FROM_HEADS),
    "layers/attention/key": _Entry(f"{_BLOCK}attn.c_attn.weight", _FROM_HEADS, ("query",), 1),
    "layers/attention/value": _Entry(f"{_BLOCK}attn.c_attn.weight", _FROM_HEADS, ("query", "key"), 1),
    "layers/attention/query_bias": _Entry(f"{_BLOCK}attn.c_attn.bias", _HEADS_VECTOR),
    "layers/attention/key_bias": _Entry(f"{_BLOCK}attn.c_attn.bias", _HEADS_VECTOR, ("query",)),
    "layers/attention/value_bias": _Entry(f"{_BLOCK}attn.c_attn.bias", _HEADS_VECTOR, ("query", "key")),
    **_linear("layers/attention/out", f"{_BLOCK}attn.c_proj", _TO_HEADS, _VECTOR),
    **_linear("layers/mlp/up", f"{_BLOCK}mlp.c_fc", _SAME, _VECTOR),
    **_linear("layers/mlp/down", f"{_BLOCK}mlp.c_proj", _TURNED, _VECTOR),
}

_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _QWEN3_MOE,
    "mixtral": _MIXTRAL,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": _PHI3,
    "gpt2": _GPT2,
}
