"""What an unknown key was probably meant to be, and in which table it belongs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tpuctl.recipe.settings import Key, Table

_NEAR = 0.7
_NEAR_ELSEWHERE = 0.8


def suggest_key(tables: dict[str, Table], table: str, name: str) -> str:
    """A remedy for a key that ``table`` (``""``: the top level) doesn't have."""
    wanted = _spelling(name)
    here = tables[table].keys
    if wanted in here:
        return f"write {wanted}"
    named = _by_other_name(tables, table, wanted)
    if named is not None:
        return _instead(named, table, wanted)
    near = difflib.get_close_matches(wanted, here, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = _placed_elsewhere(tables, table, wanted)
    if elsewhere is not None:
        return elsewhere
    return _all_of(tables, table)


def suggest_table(names: Sequence[str], name: str) -> str:
    """A remedy for a table that doesn't exist, among those that do."""
    wanted = _spelling(name)
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean [{near[0]}]?"
    return f"tables: {', '.join(names)}"


def _spelling(name: str) -> str:
    return name.replace("-", "_").lower()


def _by_other_name(tables: dict[str, Table], table: str, wanted: str) -> Key | None:
    """The key that has this name in other tools or in another table; one of the same table first."""
    order = sorted(tables.values(), key=lambda candidate: candidate.name != table)
    keys = [key for candidate in order for key in candidate.keys.values()]
    same_table = [key for key in keys if key.table == table and wanted in key.rules.also]
    exact = [key for key in keys if key.name == wanted]
    other = [key for key in keys if wanted in key.rules.also]
    if not same_table and len(exact) > 1:
        return None  # named in several tables: _placed_elsewhere lists them
    return next(iter(same_table + exact + other), None)


def _instead(key: Key, table: str, wanted: str) -> str:
    if key.table == table:
        return f"here it is called {key.name}"
    if key.name == wanted:
        return f"{key.name} belongs {_place(key)}"
    return f"did you mean {key.name}, {_place(key)}?"


def _place(key: Key) -> str:
    return f"in [{key.table}]" if key.table else "above the first [table]"


def _placed_elsewhere(tables: dict[str, Table], table: str, wanted: str) -> str | None:
    keys = [key for candidate in tables.values() if candidate.name != table for key in candidate.keys.values()]
    exact = [key for key in keys if key.name == wanted]
    if len(exact) > 1:
        return f"{wanted} belongs {' or '.join(_place(key) for key in exact)}"
    if wanted in tables:
        return f"[{wanted}] is a table of its own"
    near = difflib.get_close_matches(wanted, [key.name for key in keys], n=1, cutoff=_NEAR_ELSEWHERE)
    if not near:
        near = difflib.get_close_matches(wanted, [key.name for key in keys], n=1, cutoff=_NEAR)
    match = next((key for key in keys if near and key.name == near[0]), None)
    return f"did you mean {match.name}, {_place(match)}?" if match else None


def _all_of(tables: dict[str, Table], table: str) -> str:
    if not table:
        return f"keys go into a table: {', '.join(name for name in tables if name)}"
    return f"keys of [{table}]: {', '.join(tables[table].keys)}"
