"""How a recipe key documents itself: one ``setting()`` per field, read back as ``Key`` by everything that needs it.

The loader, ``--set``, the JSON Schema, the reference page and ``tpuctl init`` all walk the same keys, so a rule
stands in one place. Knows nothing of any particular key.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

RULES = "rules"
FAMILY = "family"
Sharing = Literal["shared", "default", "each", "never"]
KeyType = Literal["int", "float", "bool", "str", "choice", "duration", "list", "map", "command"]

# Steps and sizes end up in 32-bit counters on the device.
LARGEST_INT = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a key's value has to satisfy, and how it is explained.

    ``above`` and ``below`` are exclusive bounds, ``minimum`` and ``maximum`` inclusive ones. ``pattern`` is a regular
    expression with ``pattern_says`` in words; of a map they tell of its names, which else are those of variables.
    ``also`` are names other tools have for the key: never accepted, but answered with the right one. ``absent`` says
    what happens when the key is left out and no default tells. ``multiline`` text may have line breaks and tabs.

    ``sharing`` counts once a recipe has members (see ``Family``): a key is shared by all of them, or the default of
    each, or written for each alone; or there is none, and ``instead`` says what there is.
    """

    doc: str
    unit: str = ""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    pattern: str = ""
    pattern_says: str = ""
    example: str = ""
    absent: str = ""
    also: tuple[str, ...] = ()
    duration: bool = False
    command: bool = False
    secret: bool = False
    multiline: bool = False
    sharing: Sharing = "shared"
    instead: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of the recipe, e.g. ``train.steps``."""

    table: str
    name: str
    type: KeyType
    optional: bool
    choices: tuple[str, ...]
    default: Any
    required: bool
    rules: Rules

    @property
    def path(self) -> str:
        """The dotted path a user writes in ``--set``."""
        return f"{self.table}.{self.name}" if self.table else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of the recipe; the top level is the table named ``""``."""

    name: str
    doc: str
    kind: type
    keys: dict[str, Key]
    sharing: Sharing = "shared"

    def sharing_of(self, key: Key) -> Sharing:
        """How members share a key of this table."""
        return self.sharing if key.rules.sharing == "shared" else key.rules.sharing


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Members of a recipe, each a whole recipe but for what they share: ``[models.NAME.engine]`` is one's table.

    ``name_key`` is what the name of a member stands for.
    """

    name: str
    doc: str
    root: type
    name_key: str

    @property
    def name_rules(self) -> Key:
        """The key whose rules the members' names obey."""
        return keys_of(self.root)[self.name_key]

    def path(self, member: str) -> str:
        """The path of a member's tables."""
        return f"{self.name}.{member}"

    def shared_tables(self) -> dict[str, Table]:
        """The recipe's own tables once it has members."""
        return _only(tables_of(self.root), "shared", "default")

    def tables_of(self, member: str) -> dict[str, Table]:
        """A member's tables under their full names; the first is the member itself, which has no keys."""
        at = self.path(member)
        head = Table(name=at, doc=self.doc, kind=self.root, keys={})
        own = _only(tables_of(self.root), "default", "each")
        moved = [_moved(table, f"{at}.{name}") for name, table in own.items() if name]
        return {table.name: table for table in (head, *moved)}

    def own_keys(self) -> frozenset[str]:
        """The paths, within a member, of all keys that it may have."""
        return frozenset(
            key.path for table in _only(tables_of(self.root), "default", "each").values() for key in table.keys.values()
        )


def setting(default: Any = dataclasses.MISSING, *, doc: str, **rules: Any) -> Any:
    """A dataclass field with its rules; without a default the key is required. See ``Rules``."""
    metadata = {RULES: Rules(doc=doc, **rules)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def tables_of(root: type) -> dict[str, Table]:
    """Every table of a recipe class, the top level first, in the order of its fields."""
    return _tables_of(root)


def keys_of(root: type) -> dict[str, Key]:
    """Every key of a recipe class by its dotted path."""
    return _keys_of(root)


def family_of(root: type) -> Family | None:
    """The members that a recipe of this class may have."""
    declared = next((f for f in dataclasses.fields(root) if FAMILY in f.metadata), None)
    if declared is None:
        return None
    return Family(name=declared.name, root=root, **declared.metadata[FAMILY])


def _only(tables: dict[str, Table], *sharing: Sharing) -> dict[str, Table]:
    """Tables with those keys alone that are shared so; a table that has none left is none."""
    kept = {
        name: replace(table, keys={k: key for k, key in table.keys.items() if table.sharing_of(key) in sharing})
        for name, table in tables.items()
    }
    return {name: table for name, table in kept.items() if table.keys}


def _moved(table: Table, name: str) -> Table:
    return replace(table, name=name, keys={k: replace(key, table=name) for k, key in table.keys.items()})


@functools.cache
def _tables_of(root: type) -> dict[str, Table]:
    hints = get_type_hints(root)
    nested = {f.name: f for f in dataclasses.fields(root) if _is_table(hints[f.name], f)}
    top = {f.name: _key("", f, hints[f.name]) for f in dataclasses.fields(root) if RULES in f.metadata}
    tables = {"": Table(name="", doc=_doc(root), kind=root, keys=top)}
    for name, declared in nested.items():
        kind, sharing = hints[name], declared.metadata.get("sharing", "shared")
        tables[name] = Table(name=name, doc=_doc(kind), kind=kind, keys=_keys(name, kind), sharing=sharing)
    return tables


@functools.cache
def _keys_of(root: type) -> dict[str, Key]:
    return {key.path: key for table in tables_of(root).values() for key in table.keys.values()}


def range_text(rules: Rules) -> str:
    """The bounds in words: ``"at least 1"``, ``"above 0 and at most 1"``; empty where there are none."""
    bounds = {"at least": rules.minimum, "above": rules.above, "at most": rules.maximum, "below": rules.below}
    return " and ".join(
        f"{words} {_plain(bound)}" for words, bound in bounds.items() if bound is not None and bound != LARGEST_INT
    )


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _is_table(kind: Any, table_field: dataclasses.Field[Any]) -> bool:
    return dataclasses.is_dataclass(kind) and bool(table_field.metadata.get("table"))


def _doc(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _keys(table: str, kind: type) -> dict[str, Key]:
    hints = get_type_hints(kind)
    return {f.name: _key(table, f, hints[f.name]) for f in dataclasses.fields(kind)}


def _key(table: str, declared: dataclasses.Field[Any], kind: Any) -> Key:
    rules: Rules = declared.metadata[RULES]
    args = get_args(kind)
    optional = get_origin(kind) in (types.UnionType, Union) and types.NoneType in args
    inner = next(arg for arg in args if arg is not types.NoneType) if optional else kind
    required = declared.default is dataclasses.MISSING and declared.default_factory is dataclasses.MISSING
    factory = declared.default_factory
    default = factory() if factory is not dataclasses.MISSING else declared.default
    return Key(
        table=table,
        name=declared.name,
        type=_type_name(inner, rules),
        optional=optional,
        choices=get_args(inner) if get_origin(inner) is Literal else (),
        default=None if required else default,
        required=required,
        rules=rules,
    )


def _type_name(kind: Any, rules: Rules) -> KeyType:
    if rules.duration:
        return "duration"
    if rules.command:
        return "command"
    if get_origin(kind) is Literal:
        return "choice"
    names: dict[Any, KeyType] = {int: "int", float: "float", bool: "bool", str: "str", tuple: "list", dict: "map"}
    return names[get_origin(kind) or kind]
