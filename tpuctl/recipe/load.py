"""From a TOML file and ``--set`` options to a ``Recipe``: strict, and all errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpuctl.errors import Where
from tpuctl.plan.schema import JobKind
from tpuctl.recipe.origin import Findings, Origin, Problem
from tpuctl.recipe.schema import RECIPES, Recipe
from tpuctl.recipe.settings import Key, Table, keys_of, tables_of
from tpuctl.recipe.source import Source, read_source
from tpuctl.recipe.suggest import suggest_key, suggest_table
from tpuctl.recipe.values import BadValueError, check_value, parse_text, sample


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
    draft = _Draft(root=root, findings=Findings(origin=Origin(file=source.file, lines=source.lines)))
    draft.read(source.values)
    draft.override(overrides)
    draft.require()
    draft.findings.settle()
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


@dataclass(kw_only=True, slots=True)
class _Draft:
    """A recipe in the making: the values that were good and the problems so far. ``root`` is its kind."""

    root: type
    findings: Findings
    values: dict[str, Any] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)

    def read(self, document: dict[str, Any]) -> None:
        """Take every value of a TOML document."""
        tables = tables_of(self.root)
        for name, value in document.items():
            if name in tables[""].keys:
                self._take(tables[""].keys[name], value)
            elif name in tables and isinstance(value, dict):
                self._read_table(tables[name], value)
            elif name in tables:
                self._wrong_table_form(name, value)
            elif isinstance(value, dict):
                self._unknown_table(name)
            else:
                self.findings.refuse(name, f"unknown key {name!r}", suggest_key(tables, "", name))

    def override(self, overrides: Sequence[str]) -> None:
        """Take every ``table.key=value``."""
        for text in overrides:
            path, equals, value = text.partition("=")
            path = path.strip()
            if not equals or not path:
                self._problem_of_option(None, f"expected table.key=value, got {text!r}", "as in train.steps=50")
                continue
            self._override_one(path, value)

    def require(self) -> None:
        """Note every key that has to be there and isn't."""
        for path, key in keys_of(self.root).items():
            if key.required and path not in self.values and path not in self.bad:
                place = f"under [{key.table}]" if key.table else "at the top"
                example = f'"{key.rules.example}"' if key.type in ("str", "choice") else key.rules.example
                hint = f"add {key.name} = {example} {place}: {key.rules.doc}"
                self.findings.refuse(path, "missing", hint)

    def build(self) -> Recipe:
        """The recipe, once there are no problems."""
        tables = tables_of(self.root)
        top = {name: self.values[name] for name in tables[""].keys if name in self.values}
        nested = {name: table.kind(**self._values_of(table)) for name, table in tables.items() if name}
        recipe: Recipe = self.root(**top, **nested, origin=self.findings.origin)
        return recipe

    def _values_of(self, table: Table) -> dict[str, Any]:
        return {key.name: self.values[path] for key in table.keys.values() if (path := key.path) in self.values}

    def _read_table(self, table: Table, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name in table.keys:
                self._take(table.keys[name], value)
            else:
                hint = suggest_key(tables_of(self.root), table.name, name)
                self.findings.refuse(f"{table.name}.{name}", f"unknown key {name!r} in [{table.name}]", hint)

    def _unknown_table(self, name: str) -> None:
        kinds = [kind for kind, root in RECIPES.items() if name in tables_of(root)]
        hint = f"[{name}] belongs to kind = {kinds[0]!r}" if kinds else suggest_table(tables_of(self.root), name)
        self.findings.refuse(name, f"unknown table [{name}]", hint)

    def _take(self, key: Key, value: Any) -> None:
        try:
            self.values[key.path] = check_value(key, value)
        except BadValueError as error:
            self.bad.add(key.path)
            path = key.path if error.entry is None else f"{key.path}.{error.entry}"
            self.findings.refuse(path, error.message, error.hint)

    def _wrong_table_form(self, name: str, value: Any) -> None:
        self.bad.update(key.path for key in tables_of(self.root)[name].keys.values())
        many = isinstance(value, list)
        message = "comes as a list of tables" if many else f"is a table, not a value ({type(value).__name__})"
        self.findings.refuse(name, message, f"write [{name}] once and its keys below")

    def _override_one(self, path: str, text: str) -> None:
        keys = keys_of(self.root)
        map_path, _, entry = path.rpartition(".")
        if path in keys:
            self._set(keys[path], text)
        elif map_path in keys and keys[map_path].type == "map":
            self._set_entry(keys[map_path], entry, text)
        else:
            self._unknown_option(path)

    def _set(self, key: Key, text: str) -> None:
        if key.type == "map":
            self._problem_of_option(key.path, "is a table", f"set one entry: {key.path}.NAME=value")
            return
        self._mark_overridden(key.path)
        self.bad.discard(key.path)
        if text.strip() == "unset":
            self.values.pop(key.path, None)
        elif text.strip() == "none" and key.optional and "none" not in key.choices:
            self.values[key.path] = None
        else:
            self._parse(key, text)

    def _parse(self, key: Key, text: str) -> None:
        try:
            self.values[key.path] = parse_text(key, text)
        except BadValueError as error:
            self.bad.add(key.path)
            hint = error.hint if error.hint and "quotes" not in error.hint else sample(key)
            self._problem_of_option(key.path, error.message, hint)

    def _set_entry(self, key: Key, entry: str, text: str) -> None:
        entries = dict(self.values.get(key.path, {}))
        if text == "unset":
            entries.pop(entry, None)
        else:
            entries[entry] = text
        self._mark_overridden(f"{key.path}.{entry}")
        try:
            self.values[key.path] = check_value(key, entries)
        except BadValueError as error:
            self._problem_of_option(f"{key.path}.{error.entry}", error.message, error.hint)

    def _unknown_option(self, path: str) -> None:
        tables = tables_of(self.root)
        table, _, name = path.rpartition(".")
        if table and table not in tables:
            self._problem_of_option(path, f"unknown table {table!r}", suggest_table(tables, table))
        elif not table and name in tables:
            self._problem_of_option(path, "is a table", f"set one of its keys: {', '.join(tables[name].keys)}")
        else:
            self._problem_of_option(path, f"unknown key {name!r}", suggest_key(tables, table, name))

    def _problem_of_option(self, path: str | None, message: str, hint: str | None) -> None:
        self.findings.problems.append(Problem(where=Where(file="--set", key=path), message=message, hint=hint))

    def _mark_overridden(self, path: str) -> None:
        origin = self.findings.origin
        self.findings.origin = replace(origin, overridden=origin.overridden | {path})
