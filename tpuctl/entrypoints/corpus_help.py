"""Conversations made of documentation: what something in Python's standard library does, and its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Shorter ones mostly say that another one says it.
_LEAST_CHARACTERS = 40

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A question about something by its qualified name, and the answer."""

    name: str
    question: str
    answer: str


def conversations(sources: Mapping[str, str]) -> Iterator[Asked]:
    """What the public names of modules are documented to do, each answer once; ``sources`` is text by path."""
    seen: set[str] = set()
    for path, text in sources.items():
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if not path.endswith(".py") or any(part.startswith("_") for part in module.split(".")):
            continue
        for asked in _documented(ast.parse(text), module):
            if asked.answer not in seen:
                seen.add(asked.answer)
                yield asked


def _documented(node: ast.AST, inside: str) -> Iterator[Asked]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Documented) or child.name.startswith("_"):
            continue
        name = f"{inside}.{child.name}"
        answer = ast.get_docstring(child) or ""
        if len(answer) >= _LEAST_CHARACTERS:
            yield Asked(name=name, question=_question(child, name), answer=answer)
        if isinstance(child, ast.ClassDef):
            yield from _documented(child, name)


def _question(node: _Documented, name: str) -> str:
    if isinstance(node, ast.ClassDef):
        return f"What is the class {name} of Python's standard library?"
    return f"What does {name}({ast.unparse(node.args)}) of Python's standard library do?"
