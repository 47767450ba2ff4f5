"""Where each value of a recipe was written, so that a rule broken later can still point at the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuctl.errors import RecipeError, Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The file a recipe came from, the line of each key and table in it, and the keys ``--set`` overrode.

    Of a member of a recipe, ``owner`` is the path of its tables (``models.small``), and ``own`` are the keys that may
    stand there.
    """

    file: str
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    owner: str = ""
    own: frozenset[str] = frozenset()

    def where(self, path: str) -> Where:
        """The place of a dotted key: its line, else that of the table around it, else the file."""
        path = self._written(path)
        if path in self.overridden:
            return Where(file="--set", key=path)
        return Where(file=self.file, line=self._line(path), key=path)

    def told(self, path: str, message: str) -> str:
        """What is wrong with a key; of one that several share, for which of them."""
        shared = self._may_own(path) and not self._written(path).startswith(f"{self.owner}.")
        return f"{message} ({self.owner})" if shared else message

    def _written(self, path: str) -> str:
        """The member's own key, unless it was left out in favour of the one that all share."""
        own = f"{self.owner}.{path}"
        if not self._may_own(path) or (self._is_there(path) and not self._is_there(own)):
            return path
        return own

    def _may_own(self, path: str) -> bool:
        return (
            path in self.own
            or path.rpartition(".")[0] in self.own
            or any(key.startswith(f"{path}.") for key in self.own)
        )

    def _is_there(self, path: str) -> bool:
        return path in self.lines or path in self.overridden

    def _line(self, path: str) -> int | None:
        """Where a key stands, else where its table begins; with dotted keys that is the first of them."""
        while path and path not in self.lines:
            if beneath := [line for key, line in self.lines.items() if key.startswith(f"{path}.")]:
                return min(beneath)
            path = path.rpartition(".")[0]
        return self.lines.get(path)


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
        where, message = self.origin.where(path), self.origin.told(path, message)
        self.problems.append(Problem(where=where, message=message, hint=hint))

    def take(self, error: RecipeError) -> None:
        """Note the problems of an error, but for those that are noted already."""
        for part in error.parts or (error,):
            assert part.where is not None, "every problem of a recipe has a place"
            problem = Problem(where=part.where, message=part.message, hint=part.hint)
            if problem not in self.problems:
                self.problems.append(problem)

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
