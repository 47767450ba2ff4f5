"""Reads an optimized HLO program (``compiled.as_text()``) and adds up what one device does in one call.

XLA's own ``cost_analysis`` counts a loop's body once and a Pallas kernel not at all; a decoder whose layers run in a
scan then looks many times too cheap. Here each computation is weighted by how often it runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s64", "u64", "f64"), 8),
}
_COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
_ARRAY = re.compile(r"\b(pred|[sufc]\d+|bf16|f8\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\d\-]*)\((.*)$")
_END = re.compile(r"^\}(, execution_thread=\S+)?\s*$")
_CALL = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One array type."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.dims) * _BYTES.get(self.dtype, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One line of a computation. ``rest`` is all behind the opening parenthesis: operands and attributes."""

    name: str
    shapes: tuple[Shape, ...]
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTotal:
    """All collectives of a kind: how many stand in the program, how many run, their bytes.

    Bytes are those of the whole array: gathered, or before the reduction. ``largest_bytes`` is the largest single
    array in one of them.
    """

    count: int = 0
    runs: int = 0
    nbytes: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTotals:
    """What one device does in one call of the program."""

    matmul_flops: int
    collectives: dict[str, CollectiveTotal]
    kernels: dict[str, int]
    largest_arrays: tuple[Shape, ...] = field(default=())


def read_program(text: str) -> ProgramTotals:
    """Totals of an optimized HLO module."""
    computations, entry = _parse(text)
    runs = _run_counts(computations, entry)
    shapes = {i.name: i.shapes for body in computations.values() for i in body}
    flops, collectives, kernels = 0, dict[str, CollectiveTotal](), Counter[str]()
    for name, body in computations.items():
        for instruction in body if runs[name] else ():
            flops += runs[name] * _flops(instruction, shapes)
            if kind := _collective_kind(instruction, name):
                total = collectives.get(kind, CollectiveTotal())
                collectives[kind] = _add(total, instruction, shapes, runs[name])
            if "tpu_custom_call" in instruction.rest and instruction.opcode == "custom-call":
                kernels[re.sub(r"[.\d]+$", "", instruction.name)] += runs[name]
    return ProgramTotals(
        matmul_flops=flops, collectives=collectives, kernels=dict(kernels), largest_arrays=_largest(shapes)
    )


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            if (found := _COMPUTATION.match(line)) and not line.startswith(" "):
                current = computations.setdefault(found[2], [])
                entry = found[2] if found[1] else entry
        elif _END.match(line):  # a brace alone: attributes that run over several lines may start with one too
            current = None
        elif found := _INSTRUCTION.match(line):
            current.append(Instruction(name=found[2], shapes=_shapes(found[3]), opcode=found[4], rest=found[5]))
    return computations, entry


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype=dtype, dims=tuple(int(d) for d in dims.split(",") if d)) for dtype, dims in _ARRAY.findall(text)
    )


def _run_counts(computations: dict[str, list[Instruction]], entry: str) -> Counter[str]:
    """How often each computation runs, following calls from the entry; the call graph has no cycles."""
    runs: Counter[str] = Counter()
    pending = [(entry, 1)]
    while pending:
        name, times = pending.pop()
        runs[name] += times
        for instruction in computations.get(name, ()):
            trips = _trip_count(instruction, computations) if instruction.opcode == "while" else 1
            pending += [(callee, times * trips) for callee in _callees(instruction)]
    return runs


def _callees(instruction: Instruction) -> Iterator[str]:
    # A reduction's ``to_apply`` is a scalar function: nothing in it counts, but it would not hurt either.
    yield from (name for _, name in _CALL.findall(instruction.rest))
    for names in _BRANCHES.findall(instruction.rest):
        yield from (name.strip().lstrip("%") for name in names.split(","))


def _trip_count(loop: Instruction, computations: dict[str, list[Instruction]]) -> int:
    if known := re.search(r"known_trip_count[^\d]*(\d+)", loop.rest):
        return int(known[1])
    # A scan counts from 0 by 1 up to the one integer constant its condition compares with.
    condition = dict(_CALL.findall(loop.rest))["condition"]
    constants = [
        int(found[1])
        for instruction in computations[condition]
        if instruction.opcode == "constant" and (found := re.match(r"(\d+)\)", instruction.rest))
    ]
    return max(constants, default=1)


def _collective_kind(instruction: Instruction, computation: str) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        return "reduce-scatter"  # TPU's name for a reduce-scatter fused from the two halves it was written as
    return kind if kind in _COLLECTIVES else None


def _add(
    total: CollectiveTotal, instruction: Instruction, shapes: dict[str, tuple[Shape, ...]], runs: int
) -> CollectiveTotal:
    arrays = [*instruction.shapes, *(shape for name in instruction.operands for shape in shapes.get(name, ()))]
    operand_bytes = sum(shape.nbytes for name in instruction.operands for shape in shapes.get(name, ()))
    result_bytes = sum(shape.nbytes for shape in instruction.shapes)
    if instruction.opcode.endswith("-start"):
        result_bytes -= operand_bytes  # an asynchronous start returns its operands beside the result
    return CollectiveTotal(
        count=total.count + 1,
        runs=total.runs + runs,
        nbytes=total.nbytes + runs * max(operand_bytes, result_bytes),
        largest_bytes=max([total.largest_bytes, *(shape.nbytes for shape in arrays)]),
    )


def _flops(instruction: Instruction, shapes: dict[str, tuple[Shape, ...]]) -> int:
    if instruction.opcode == "dot":
        left = shapes[instruction.operands[0]][0].dims
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
        inner = math.prod(left[int(d)] for d in contracted[1].split(",") if d) if contracted else 1
        return 2 * math.prod(instruction.shapes[0].dims) * inner
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, shapes)
    return 0


def _convolution_flops(instruction: Instruction, shapes: dict[str, tuple[Shape, ...]]) -> int:
    """TPU writes matrix products as convolutions, batch dimensions as windows that touch one element each."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.rest)
    if labels is None:
        raise ValueError(f"convolution without dim_labels: {instruction.name}")
    left, right = (shapes[name][0].dims for name in instruction.operands[:2])
    out = instruction.shapes[0].dims
    products = right[labels[2].index("i")]
    for label, size in zip(labels[3], out, strict=True):
        if not label.isdigit():
            products *= size
            continue
        window = _window(instruction.rest, int(label))
        products *= window.touched(n_out=size, n_in=left[labels[1].index(label)])
    return 2 * products


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    size: int = 1
    stride: int = 1
    pad: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1

    def touched(self, *, n_out: int, n_in: int) -> int:
        """Pairs of output and window position that meet an element of the input, not padding."""
        span = (n_in - 1) * self.lhs_dilate
        pairs = 0
        for k in range(self.size):
            offset = k * self.rhs_dilate - self.pad
            first = max(0, -(offset // self.stride)) if offset < 0 else 0
            last = min(n_out - 1, (span - offset) // self.stride)
            hits = range(first * self.stride + offset, last * self.stride + offset + 1, self.stride)
            pairs += len(hits) if self.lhs_dilate == 1 else sum(hit % self.lhs_dilate == 0 for hit in hits)
        return pairs


def _window(rest: str, dimension: int) -> _Window:
    found = re.search(r"window=\{([^}]*)\}", rest)
    values = dict(part.split("=") for part in found[1].split()) if found else {}
    number = {key: int(re.split("_", value.split("x")[dimension])[0]) for key, value in values.items()}
    return _Window(
        **{key: number[key] for key in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate") if key in number}
    )


def _largest(shapes: dict[str, tuple[Shape, ...]], count: int = 8) -> tuple[Shape, ...]:
    distinct = {shape for group in shapes.values() for shape in group}
    return tuple(sorted(distinct, key=lambda shape: (-shape.nbytes, shape.dims))[:count])
