"""Where each value of a recipe was written, so that a rule broken later can still point at the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuctl.errors import RecipeError, Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The file a recipe came from, the line of each key and table in it, and the keys ``--set`` overrode."""

    file: str
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()

    def where(self, path: str) -> Where:
        """The place of a dotted key: its line, else its table's, else the file."""
        if path in self.overridden:
            return Where(file="--set", key=path)
        table = path.rpartition(".")[0]
        return Where(file=self.file, line=self.lines.get(path, self.lines.get(table)), key=path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe."""

    where: Where
    message: str
    hint: str | None = None


@dataclass(kw_only=True, slots=True)
class Findings:
    """What came to light about a recipe: problems that refuse it, and notes on what was chosen for the user."""

    origin: Origin
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, path: str, message: str, hint: str | None = None) -> None:
        """Note a problem with a key."""
        self.problems.append(Problem(where=self.origin.where(path), message=message, hint=hint))

    def settle(self) -> None:
        """Raise all problems as one error; nothing happens when there are none.

        Raises:
            RecipeError: one problem as itself; several as a list in the order of the file.
        """
        if not self.problems:
            return
        ordered = sorted(self.problems, key=lambda problem: (problem.where.file, problem.where.line or 0))
        errors = [RecipeError(problem.message, hint=problem.hint, where=problem.where) for problem in ordered]
        if len(errors) == 1:
            raise errors[0]
        listing = "\n".join(_listed(problem) for problem in ordered)
        raise RecipeError(f"{len(ordered)} problems in the recipe\n{listing}", parts=errors)

    def has(self, *paths: str) -> bool:
        """Whether any of these keys has a problem already, so that what follows from it needs no words."""
        return any(problem.where.key in paths for problem in self.problems)


def _listed(problem: Problem) -> str:
    hint = f"\n    hint: {problem.hint}" if problem.hint else ""
    return f"  {problem.where}: {problem.message}{hint}"
