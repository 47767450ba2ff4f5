"""A recipe in the making: values taken one by one from TOML and ``--set``, every problem noted beside its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tpuctl.errors import Where
from tpuctl.recipe.origin import Findings, Origin, Problem
from tpuctl.recipe.schema import RECIPES, Recipe
from tpuctl.recipe.settings import Family, Key, Table, family_of, keys_of, tables_of
from tpuctl.recipe.suggest import suggest_key, suggest_table
from tpuctl.recipe.values import BadValueError, check_value, parse_text, sample


@dataclass(kw_only=True, slots=True)
class Draft:
    """The values that were good and the problems so far. ``root`` is the recipe's kind, ``tables`` those it may have:
    its own, and of each of its ``members``."""

    root: type
    findings: Findings
    tables: dict[str, Table]
    members: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, root: type, document: dict[str, Any], *, findings: Findings) -> Self:
        """With every value of a TOML document."""
        family = family_of(root)
        if family is None or family.name not in document:
            draft = cls(root=root, findings=findings, tables=tables_of(root))
            draft._read_table("", document)
            return draft
        found = document[family.name]
        members = _members(family, found, findings)
        tables = family.shared_tables()
        for member in members:
            tables |= family.tables_of(member)
        draft = cls(root=root, findings=findings, tables=tables, members=tuple(members))
        draft._read_table("", {name: value for name, value in document.items() if name != family.name})
        for member in members:
            draft._read_table(family.path(member), found[member])
        return draft

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
        for path, key in self._keys.items():
            # What members share as a default is asked for there, once.
            if key.required and not self._member(path) and path not in self.values and path not in self.bad:
                place = f"under [{key.table}]" if key.table else "at the top"
                example = f'"{key.rules.example}"' if key.type in ("str", "choice") else key.rules.example
                hint = f"add {key.name} = {example} {place}: {key.rules.doc}"
                self.findings.refuse(path, "missing", hint)

    def build(self) -> Recipe:
        """The recipe, once there are no problems."""
        family = family_of(self.root)
        if family is None or not self.members:
            return self._built(self.values, self.findings.origin)
        made: dict[str, Any] = {family.name: {name: self._build_member(family, name) for name in self.members}}
        return replace(self._built(self.values, self.findings.origin), **made)

    def _build_member(self, family: Family, member: str) -> Recipe:
        at = family.path(member)
        own = {path: self.values[f"{at}.{path}"] for path in family.own_keys() if f"{at}.{path}" in self.values}
        origin = replace(self.findings.origin, owner=at, own=family.own_keys())
        return self._built({**self.values, **own, family.name_key: member}, origin)

    def _built(self, values: dict[str, Any], origin: Origin) -> Recipe:
        tables = tables_of(self.root)
        made = {name: _values_of(table, values) for name, table in tables.items()}
        nested = {name: table.kind(**made[name]) for name, table in tables.items() if name}
        recipe: Recipe = self.root(**made[""], **nested, origin=origin)
        return recipe

    @property
    def _keys(self) -> dict[str, Key]:
        return {key.path: key for table in self.tables.values() for key in table.keys.values()}

    def _read_table(self, at: str, values: dict[str, Any]) -> None:
        table = self.tables[at]
        for name, value in values.items():
            path = f"{at}.{name}" if at else name
            if name in table.keys:
                self._take(table.keys[name], value)
            elif path in self.tables and isinstance(value, dict):
                self._read_table(path, value)
            elif path in self.tables:
                self._wrong_table_form(path, value)
            elif isinstance(value, dict) and at == self._member(at):
                self.findings.refuse(path, f"unknown table [{path}]", self._table_hint(path))
            else:
                where = f" in [{at}]" if at else ""
                self.findings.refuse(path, f"unknown key {name!r}{where}", self._key_hint(at, name))

    def _member(self, path: str) -> str:
        """The path of the member that a key or table is of; empty for the recipe's own."""
        family = family_of(self.root)
        paths = [family.path(member) for member in self.members] if family else []
        return max((at for at in paths if f"{path}.".startswith(f"{at}.")), key=len, default="")

    def _scope(self, path: str) -> dict[str, Table]:
        """The tables of the same member, or else the recipe's own."""
        member = self._member(path)
        return {name: table for name, table in self.tables.items() if self._member(name) == member}

    def _table_hint(self, path: str) -> str:
        if elsewhere := self._shared_hint(path) or self._family_hint(path):
            return elsewhere
        kinds = [kind for kind, root in RECIPES.items() if path in tables_of(root)]
        if kinds:
            return f"[{path}] belongs to kind = {kinds[0]!r}"
        family, names = family_of(self.root), [name for name in self._scope(path) if name]
        return suggest_table(names if family is None or self._member(path) else [*names, family.name], path)

    def _key_hint(self, at: str, name: str) -> str:
        return self._shared_hint(f"{at}.{name}" if at else name) or suggest_key(self._scope(at), at, name)

    def _shared_hint(self, path: str) -> str | None:
        """Where a key or table belongs that the recipe would have were it not for its members."""
        family, member = family_of(self.root), self._member(path)
        if family is None or not self.members:
            return None
        inner = path.removeprefix(f"{member}.") if member else path
        key = keys_of(self.root).get(inner)
        if key is not None and key.rules.instead:
            return key.rules.instead
        if key is None and inner not in tables_of(self.root):
            return None
        table = key.table if key else inner
        if member:
            return f"it is shared by all: write it in [{table}]" if table else "it is the whole recipe's"
        return f"each has its own: write it in [{family.path(self.members[0])}.{table}]"

    def _family_hint(self, path: str) -> str | None:
        """Which members there are, for a path that is of none of them."""
        family = family_of(self.root)
        if family is None or self._member(path) or path.partition(".")[0] != family.name:
            return None
        paths = [family.path(member) for member in self.members]
        return f"there is {', '.join(paths)}" if paths else f"the recipe has no [{family.path('NAME')}.model]"

    def _take(self, key: Key, value: Any) -> None:
        try:
            self.values[key.path] = check_value(key, value)
        except BadValueError as error:
            self.bad.add(key.path)
            path = key.path if error.entry is None else f"{key.path}.{error.entry}"
            self.findings.refuse(path, error.message, error.hint)

    def _wrong_table_form(self, name: str, value: Any) -> None:
        self.bad.update(key.path for key in self.tables[name].keys.values())
        many = isinstance(value, list)
        message = "comes as a list of tables" if many else f"is a table, not a value ({type(value).__name__})"
        self.findings.refuse(name, message, f"write [{name}] once and its keys below")

    def _override_one(self, path: str, text: str) -> None:
        keys = self._keys
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
        table, _, name = path.rpartition(".")
        if path in self.tables and self.tables[path].keys:
            self._problem_of_option(path, "is a table", f"set one of its keys: {', '.join(self.tables[path].keys)}")
        elif table and table not in self.tables:
            self._problem_of_option(path, f"unknown table {table!r}", self._table_hint(table))
        else:
            self._problem_of_option(path, f"unknown key {name!r}", self._key_hint(table, name))

    def _problem_of_option(self, path: str | None, message: str, hint: str | None) -> None:
        self.findings.problems.append(Problem(where=Where(file="--set", key=path), message=message, hint=hint))

    def _mark_overridden(self, path: str) -> None:
        origin = self.findings.origin
        self.findings.origin = replace(origin, overridden=origin.overridden | {path})


def _members(family: Family, found: Any, findings: Findings) -> list[str]:
    """The members whose tables can be read."""
    if not isinstance(found, dict) or not found:
        message = "names none" if isinstance(found, dict) else "is a table of tables"
        findings.refuse(family.name, message, f"write [{family.path('NAME')}.model] for each")
        return []
    members: list[str] = []
    taken: set[str] = set()
    for name, tables in found.items():
        at = family.path(name)
        try:
            check_value(family.name_rules, name)
        except BadValueError as error:
            findings.refuse(at, f"{name!r} is no such name: {error.message}", error.hint)
            continue
        if not isinstance(tables, dict):
            findings.refuse(at, "is a table, not a value", f"write [{at}] and its tables below")
        elif not taken.isdisjoint(family.tables_of(name)):
            findings.refuse(at, "reads like a table of another's", "choose a name that does not end so")
        else:
            taken |= family.tables_of(name).keys()
            members.append(name)
    return members


def _values_of(table: Table, values: dict[str, Any]) -> dict[str, Any]:
    return {key.name: values[path] for key in table.keys.values() if (path := key.path) in values}
