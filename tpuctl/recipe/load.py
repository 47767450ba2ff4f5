"""From a TOML file and ``--set`` options to a ``Recipe``: strict, and all errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpuctl.plan.schema import JobKind
from tpuctl.recipe.draft import Draft
from tpuctl.recipe.origin import Findings, Origin
from tpuctl.recipe.schema import RECIPES, Recipe
from tpuctl.recipe.settings import keys_of, tables_of
from tpuctl.recipe.source import Source, read_source
from tpuctl.recipe.values import BadValueError, check_value


def load_recipe(path: Path, *, overrides: Sequence[str] = (), wanted: JobKind | None = None) -> Recipe:
    """The recipe in a file, with overrides applied.

    Args:
        path: A TOML file; UTF-8, with or without BOM, any line ends.
        overrides: ``table.key=value`` texts, typed by the schema, the last one of a key winning. ``unset`` takes a
            key back to its default, ``none`` empties one that may be empty.
        wanted: The kind to propose where there is no such file.

    Raises:
        RecipeError: all that is wrong, each with file, line, key and remedy.
    """
    return build_recipe(read_source(path, wanted=wanted), overrides=overrides)


def kind_of(path: Path, *, overrides: Sequence[str] = (), wanted: JobKind | None = None) -> JobKind:
    """The kind of the recipe in a file, whatever else is in it; raises as ``load_recipe`` does."""
    return _kind_of(read_source(path, wanted=wanted), overrides)


def build_recipe(source: Source, *, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that parsed TOML and overrides hold; raises as ``load_recipe`` does."""
    root = RECIPES[_kind_of(source, overrides)]
    findings = Findings(origin=Origin(file=source.file, lines=source.lines))
    draft = Draft.of(root, source.values, findings=findings)
    draft.override(overrides)
    draft.require()
    findings.settle()
    return draft.build()


def _kind_of(source: Source, overrides: Sequence[str]) -> JobKind:
    """What kind of recipe it says it is. Without one, nothing can be said of its other keys."""
    said = [text.partition("=")[2].strip(" \"'") for text in overrides if text.partition("=")[0].strip() == "kind"]
    found = said[-1] if said else source.values.get("kind")
    overridden = frozenset(["kind"] if said else [])
    findings = Findings(origin=Origin(file=source.file, lines=source.lines, overridden=overridden))
    kinds = "\n".join(f'    kind = "{kind}"   # {tables_of(root)[""].doc}' for kind, root in RECIPES.items())
    hint = f"write one of these above the first [table]:\n{kinds}"
    try:
        kind: JobKind = check_value(keys_of(Recipe)["kind"], found)
    except BadValueError as error:
        findings.refuse("kind", "missing" if found in (None, "unset") else error.message, hint)
        findings.settle()
        raise
    return kind
