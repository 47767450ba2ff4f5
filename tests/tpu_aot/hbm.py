"""What one call of a compiled TPU program reads from HBM and writes to it, by instruction.

XLA's ``cost_analysis`` counts a loop's body once. Here each instruction outside of fusions counts as often as it runs:
what it takes and makes, unless that lies on the chip (``S(1)`` in its layout), of an array that it cuts a piece out of
or writes a piece into only the piece, and of branches the cheapest, which a greedy step without penalties takes. A
kernel counts with what it is handed but for arrays as large as the pages: what it reads of those nobody can see here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.train import hlo

_ARRAY = re.compile(r"\b(pred|[sufc]\d+|bf16|f8\w+)\[([\d,]*)\](\{[^{}]*\})?")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\d\-]*)\(")
_ON_CHIP = re.compile(r"S\([1-9]\d*\)")
_NAME = re.compile(r'op_name="([^"]*)"')
_FREE = re.compile(
    r"parameter|tuple|get-tuple-element|bitcast|constant|iota|after-all|partition-id|replica-id|optimization-barrier"
    r"|async-update|[a-z\-]+-done"
)
_PIECES = ("dynamic-slice", "slice", "gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """Bytes that an instruction moves in one call of the program; ``of`` is what it was made for."""

    name: str
    of: str
    nbytes: int


def moved(text: str, *, pages: int) -> list[Moved]:
    """By instruction, those that move most first. ``pages`` is how many numbers the KV pages have."""
    program = _Program(text, pages=pages)
    found = Counter[str]()
    for name, nbytes in program.traffic(program.entry):
        found[name] += nbytes
    return [Moved(name=name, of=program.made_for(name), nbytes=nbytes) for name, nbytes in found.most_common()]


class _Program:
    def __init__(self, text: str, *, pages: int) -> None:
        self.computations, self.entry = hlo._parse(text)
        self._pages = pages
        self._lines: dict[str, str] = {}
        self._hbm: dict[str, list[hlo.Shape]] = {}
        for line in text.splitlines():
            if found := _LINE.match(line):
                self._lines[found[1]] = line
                self._hbm[found[1]] = _in_hbm(found[2])

    def made_for(self, name: str) -> str:
        found = _NAME.search(self._lines[name])
        return found[1] if found else name

    def traffic(self, computation: str) -> Iterator[tuple[str, int]]:
        """Instructions with what they move each time the computation runs."""
        for instruction in self.computations.get(computation, ()):
            if instruction.opcode == "while":
                trips = hlo._trip_count(instruction, self.computations)
                yield from ((name, trips * nbytes) for name, nbytes in self.traffic(_callee(instruction, "body")))
            elif instruction.opcode == "conditional":
                branches = [list(self.traffic(name)) for name in hlo._callees(instruction)]
                yield from min(branches, key=lambda branch: sum(nbytes for _, nbytes in branch))
            elif instruction.opcode == "call":
                yield from self.traffic(_callee(instruction, "to_apply"))
            elif not _FREE.fullmatch(instruction.opcode):
                yield instruction.name, self._moved(instruction)

    def _moved(self, instruction: hlo.Instruction) -> int:
        if instruction.opcode.endswith("-start"):
            return self._started(instruction)
        made = sum(shape.nbytes for shape in self._hbm[instruction.name])
        operands = [name for name in instruction.operands if name in self._hbm]
        if instruction.opcode == "fusion":
            return self._fused(instruction, operands, made)
        if instruction.opcode in _PIECES:
            return 2 * made
        if instruction.opcode in ("dynamic-update-slice", "scatter"):
            return 2 * self._bytes(operands[-1] if instruction.opcode == "scatter" else operands[1])
        return made + sum(self._bytes(name) for name in operands if not self._is_pages(name))

    def _started(self, instruction: hlo.Instruction) -> int:
        """A copy, a slice or a collective beside other work: the size of its smaller end, for each end in HBM."""
        ends = [shape for shape in instruction.shapes if shape.dims]
        return min(shape.nbytes for shape in ends) * len(self._hbm[instruction.name]) if ends else 0

    def _fused(self, fusion: hlo.Instruction, operands: list[str], made: int) -> int:
        inside = self.computations[_callee(fusion, "calls")]
        parameters = {i.name: int(i.rest.split(")")[0]) for i in inside if i.opcode == "parameter"}
        read = written = 0
        for name, number in parameters.items():
            if number < len(operands) and self._hbm[operands[number]]:
                pieces, updates = self._uses(name, inside)
                read += self._bytes(operands[number]) if pieces is None else pieces
                written += updates
        in_place = any(self._writes_pieces(i) for i in inside)
        return read + (written if in_place and written else made)

    def _uses(self, name: str, inside: list[hlo.Instruction]) -> tuple[int | None, int]:
        """Bytes cut out of a fusion's parameter, ``None`` for all of it, and those written into it in its place."""
        pieces = updates = 0
        for user in (i for i in inside if name in i.operands):
            size = sum(shape.nbytes for shape in user.shapes)
            if user.opcode in _PIECES and user.operands[0] == name:
                pieces += size
            elif user.opcode == "bitcast":
                below, beside = self._uses(user.name, inside)
                if below is None:
                    return None, updates
                pieces, updates = pieces + below, updates + beside
            elif self._writes_pieces(user) and user.operands[0] == name:
                updates += self._update(user, inside)
            elif user.opcode == "fusion":
                body = self.computations[_callee(user, "calls")]
                number = user.operands.index(name)
                own = next(i.name for i in body if i.opcode == "parameter" and int(i.rest.split(")")[0]) == number)
                below, beside = self._uses(own, body)
                if below is None:
                    return None, updates
                pieces, updates = pieces + below, updates + beside
            else:
                return None, updates
        return pieces, updates

    def _update(self, user: hlo.Instruction, inside: list[hlo.Instruction]) -> int:
        name = user.operands[2 if user.opcode == "scatter" else 1]
        return next((sum(s.nbytes for s in i.shapes) for i in inside if i.name == name), 0)

    @staticmethod
    def _writes_pieces(instruction: hlo.Instruction) -> bool:
        return instruction.opcode in ("dynamic-update-slice", "scatter")

    def _bytes(self, name: str) -> int:
        return sum(shape.nbytes for shape in self._hbm.get(name, ()))

    def _is_pages(self, name: str) -> bool:
        return any(math.prod(shape.dims) >= self._pages for shape in self._hbm[name])


def _in_hbm(text: str) -> list[hlo.Shape]:
    return [
        hlo.Shape(dtype=dtype, dims=tuple(int(d) for d in dims.split(",") if d))
        for dtype, dims, layout in _ARRAY.findall(text)
        if dims and not _ON_CHIP.search(layout)  # a number by itself lies in the core's own memory
    ]


def _callee(instruction: hlo.Instruction, kind: str) -> str:
    callees: dict[str, str] = dict(hlo._CALL.findall(instruction.rest))
    return callees[kind]
