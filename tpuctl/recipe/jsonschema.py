"""The recipe as a JSON Schema (draft 2020-12), so that editors complete and check TOML."""

from __future__ import annotations

from typing import Any

from tpuctl.recipe.durations import PATTERN
from tpuctl.recipe.schema import RECIPES
from tpuctl.recipe.settings import Family, Key, Table, family_of, tables_of

_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"


def recipe_schema() -> dict[str, Any]:
    """The JSON Schema of a recipe of any kind."""
    kinds = [_of_kind(kind, root) for kind, root in RECIPES.items()]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tpuctl recipe", "oneOf": kinds}


def _of_kind(kind: str, root: type) -> dict[str, Any]:
    tables = tables_of(root)
    top = _object(tables[""])
    nested = {name: _object(table) for name, table in tables.items() if name}
    top["properties"].update(nested)
    top["properties"]["kind"]["enum"] = [kind]
    top["required"] += [name for name, table in nested.items() if table.get("required")]
    family = family_of(root)
    if family is not None:
        top["properties"][family.name] = _members(family)
        top["dependentSchemas"] = {family.name: {"properties": _absent(family, tables)}}
    return top


def _members(family: Family) -> dict[str, Any]:
    """One object for each name; what is required may stand in the recipe's own tables."""
    at = family.path("NAME")
    head, *tables = family.tables_of("NAME").values()
    member = _object(head)
    for table in tables:
        member["properties"][table.name.removeprefix(f"{at}.")] = _object(table, partial=True)
    return {
        "description": family.doc,
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^(?:{family.name_rules.rules.pattern})$"},
        "additionalProperties": member,
    }


def _absent(family: Family, tables: dict[str, Table]) -> dict[str, Any]:
    """The tables and keys that there are not where there are members."""
    shared = family.shared_tables()
    absent: dict[str, Any] = dict.fromkeys(sorted(tables.keys() - shared.keys()), False)
    for name in filter(None, shared):
        if gone := tables[name].keys.keys() - shared[name].keys.keys():
            absent[name] = {"properties": dict.fromkeys(sorted(gone), False)}
    return absent


def _object(table: Table, *, partial: bool = False) -> dict[str, Any]:
    required = [key.name for key in table.keys.values() if key.required and not partial]
    return {
        "description": table.doc,
        "type": "object",
        "properties": {key.name: _property(key) for key in table.keys.values()},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _property(key: Key) -> dict[str, Any]:
    unit = f" In {key.rules.unit}." if key.rules.unit else ""
    absent = f" Left out: {key.rules.absent}." if key.rules.absent else ""
    default = {} if key.required or key.default is None else {"default": _plain(key.default)}
    return {"description": f"{key.rules.doc}{unit}{absent}", **_type(key), **default}


def _type(key: Key) -> dict[str, Any]:
    if key.type in ("int", "float"):
        return {"type": "integer" if key.type == "int" else "number", **_bounds(key)}
    if key.type == "bool":
        return {"type": "boolean"}
    if key.type == "choice":
        return {"enum": list(key.choices)}
    if key.type == "duration":
        return {"anyOf": [{"type": "number", **_bounds(key)}, {"type": "string", "pattern": f"^{PATTERN}$"}]}
    if key.type == "list":
        return {"type": "array", "items": {"type": "string", "minLength": 1}}
    if key.type == "command":
        words = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"type": "string", "minLength": 1}, words]}
    if key.type == "map":
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{key.rules.pattern})$" if key.rules.pattern else _VARIABLE},
            "additionalProperties": {"type": "string"},
        }
    return {
        "type": "string",
        "minLength": 1,
        **({"pattern": f"^(?:{key.rules.pattern})$"} if key.rules.pattern else {}),
    }


def _bounds(key: Key) -> dict[str, Any]:
    rules = key.rules
    bounds = {
        "minimum": rules.minimum,
        "exclusiveMinimum": rules.above,
        "maximum": rules.maximum,
        "exclusiveMaximum": rules.below,
    }
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
