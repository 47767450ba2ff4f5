"""The recipe explained: the reference page (Markdown) and the commented recipe that ``tpuctl init`` writes.

Both come from the schema; ``docs/recipe.md`` is the page as a file, and a test fails when it is stale.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import tomli_w

from tpuctl.modelspec import PRESETS, num_parameters
from tpuctl.plan.schema import JobKind
from tpuctl.recipe.schema import RECIPES, Recipe
from tpuctl.recipe.settings import Family, Key, Table, family_of, keys_of, tables_of
from tpuctl.recipe.values import expected

_INTRO = """\
# Recipe reference

<!-- Written by `python -m tpuctl.recipe.reference > docs/recipe.md`; do not edit. -->

A recipe is a TOML file that says what to run and on which slice: `kind = "train"` trains a model on text, `kind =
"infer"` puts every row of a dataset through a task, `kind = "custom"` runs a command or function of your own. It is
strict: an unknown key, a value of the wrong type or out of range and rules broken between keys are all reported
before anything is contacted, each with file, line and remedy. Whole numbers are taken where a number is wanted;
nothing else is converted.

- `tpuctl init train` writes a commented recipe, `tpuctl check` validates one, `tpuctl plan` shows what it amounts to.
- `--set train.steps=50` overrides a key, its value typed by the key: text needs no quotes, lists are `a,b`, `none`
  empties a key that may be empty, `unset` takes it back to its default. `--set job.env.NAME=value` sets one variable.
- Relative paths start at the directory tpuctl is called in, wherever the recipe lies.
- `tpuctl schema > recipe.schema.json` and `#:schema ./recipe.schema.json` as the first line of a recipe let editors
  complete it.
"""
_WIDTH = 110
# Set in the commented recipe although single keys need them not: without them no job comes of it.
_SHOWN = ("model.preset", "slice.topology", "job.command", "task.function")
# Tables whose header alone asks for something; it is commented out with their keys.
_ASKING = frozenset({"lora"})


def reference_page() -> str:
    """The whole reference page."""
    parts = [_INTRO, *(_section(table) for table in tables_of(Recipe).values())]
    for kind, root in RECIPES.items():
        own = [table for table in map(_without_shared, tables_of(root).values()) if table.keys]
        parts += [_section(table, kind=kind) for table in own]
        if (family := family_of(root)) is not None:
            parts.append(_family_section(family, kind=kind))
    return "\n".join([*parts, _presets()])


def commented_recipe(kind: JobKind) -> str:
    """A recipe with every key explained: required ones set to an example, the others commented out."""
    tables = tables_of(RECIPES[kind])
    parts = ["# Every key of a recipe. Those commented out show their default or an example.\n"]
    for table in tables.values():
        hidden = "# " * (table.name in _ASKING)
        head = f"# {table.doc}\n{hidden}[{table.name}]\n" if table.name else ""
        keys = [_commented_key(key, kind) for key in table.keys.values() if key.type != "map"]
        maps = [_commented_map(key) for key in table.keys.values() if key.type == "map"]
        parts.append(head + "\n".join(keys + maps))
    if (family := family_of(RECIPES[kind])) is not None:
        about = textwrap.fill(family.doc, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        parts.append(f"{about}\n# [{family.path('NAME')}.model]\n")
    return "\n".join(parts)


def toml_value(value: Any) -> str:
    """A default as TOML on one line, numbers in their shortest form."""
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, float):
        return f"{value:g}" if value == int(value) or abs(value) < 1e-3 else str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"  # on one line, so that it can be commented out
    return tomli_w.dumps({"key": value}).removeprefix("key = ").strip()


def _without_shared(table: Table) -> Table:
    """What a table of one kind of recipe has beyond, or unlike, that of all kinds."""
    shared = keys_of(Recipe)
    return replace(table, keys={name: key for name, key in table.keys.items() if shared.get(key.path) != key})


def _section(table: Table, *, kind: str | None = None) -> str:
    title = f"## `[{table.name}]`" if table.name else "## Top level"
    title += f' of `kind = "{kind}"`' if kind else ""
    doc = f"{table.doc}\n\n" if table.name else ""
    rows = "\n".join(_row(key) for key in table.keys.values())
    return f"{title}\n\n{doc}| key | takes | default | meaning |\n|---|---|---|---|\n{rows}\n"


def _family_section(family: Family, *, kind: str) -> str:
    at = family.path("NAME")
    head, *tables = family.tables_of("NAME").values()
    taken = {table.name: _taken(family, table, table.name.removeprefix(f"{at}.")) for table in tables}
    rows = "\n".join(f"| `[{name}]` | {keys} |" for name, keys in taken.items())
    never = [f"`[{name}]`" for name in tables_of(family.root) if name not in family.shared_tables()]
    never += [f"`{key.path}`" for key in keys_of(family.root).values() if key.rules.sharing in ("each", "never")]
    note = f"With them there is no {', '.join(never)} at the top."
    return f'## `[{at}]` of `kind = "{kind}"`\n\n{head.doc} {note}\n\n| table | takes |\n|---|---|\n{rows}\n'


def _taken(family: Family, table: Table, name: str) -> str:
    """The keys of a member's table."""
    if table.keys.keys() == tables_of(family.root)[name].keys.keys():
        return f"every key of `[{name}]`"
    return ", ".join(f"`{key}`" for key in table.keys)


def _row(key: Key) -> str:
    takes = expected(key) if key.type != "str" or not key.rules.pattern else key.rules.pattern_says
    cells = (f"`{key.name}`", takes, _default(key), key.rules.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.required:
        return "**required**"
    if key.default is None:
        return key.rules.absent or "none"
    return f"`{toml_value(key.default)}`"


def _presets() -> str:
    rows = "\n".join(
        f"| `{name}` | {_size(num_parameters(spec))} | {spec.hidden_size} | {spec.num_layers} | "
        f"{spec.num_heads}/{spec.num_kv_heads} × {spec.head_dim} | {spec.mlp_size} | {spec.vocab_size or 'tokenizer'} |"
        for name, spec in PRESETS.items()
    )
    head = (
        "| preset | parameters | hidden | layers | heads/kv × dim | MLP | vocabulary |\n|---|---|---|---|---|---|---|"
    )
    note = "Where the vocabulary is the tokenizer's, parameters are counted without the embedding."
    return f"## Presets\n\n{note}\n\n{head}\n{rows}\n"


def _size(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def _commented_key(key: Key, kind: str) -> str:
    absent = f" Left out: {key.rules.absent}." if key.rules.absent else ""
    takes = f" Takes {expected(key)}." if key.type != "bool" and not key.rules.pattern else ""
    about = f"{key.rules.doc}{takes}{absent}"
    comment = textwrap.fill(about, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    if key.path == "kind":
        return f'{comment}\nkind = "{kind}"\n'
    is_set = key.required or key.path in _SHOWN
    line = f"{key.name} = {_example(key)}"
    return f"{comment}\n{line if is_set else f'# {line}'}\n"


def _example(key: Key) -> str:
    """The key's default, else its example, as TOML."""
    if not key.required and key.default not in (None, ()):
        return toml_value(key.default)
    quoted = key.type in ("str", "choice", "duration", "command")
    return toml_value(key.rules.example) if quoted else key.rules.example


def _commented_map(key: Key) -> str:
    comment = textwrap.fill(key.rules.doc, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    return f'{comment}\n# [{key.path}]\n# NAME = "value"\n'


if __name__ == "__main__":
    print(reference_page(), end="")
