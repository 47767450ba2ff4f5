"""The key → line scanner against tomllib on the same text."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tpuctl.recipe.source import key_lines

ROOT = Path(__file__).parents[2]

NASTY = '''\
# a = 1
top = "x # no comment" # [not.a.table]
"quoted key" = 'C:\\path [x]'
dotted . "a.b" . c = 1.5e-3

text = """
[fake]
key = 1 \\" still text
"""   # after
literal = \'\'\'
other = 2
\'\'\'
numbers = [ 1, 2,
  # comment = 3
  [ 3, 4 ], { inner = 5 } ]
inline = { first = 1, second.third = "a, b = 2", "fo\\u0075rth" = { deep = [1,
2] } }
date = 1979-05-27T07:32:00Z
[table]
a=1
[ table . "sub table" ]
b = true
[[many]]
c = 1
[[many]]
c = 2
[last]
'''


def leaves(data: dict, prefix: tuple[str, ...] = ()):
    """Every path, and whether something is written for it itself: of a table perhaps only what is in it."""
    for name, value in data.items():
        yield ".".join((*prefix, name)), not isinstance(value, dict)
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, name))


def test_key_lines_of_nasty_toml_finds_every_key_where_it_is_written() -> None:
    lines = key_lines(NASTY)
    rows = NASTY.splitlines()
    expected = {
        "top": 2,
        "quoted key": 3,
        "dotted.a.b.c": 4,
        "text": rows.index('text = """') + 1,
        "literal": rows.index("literal = '''") + 1,
        "numbers": rows.index("numbers = [ 1, 2,") + 1,
        "inline.second.third": next(i for i, row in enumerate(rows, 1) if row.startswith("inline")),
        "inline.fourth.deep": next(i for i, row in enumerate(rows, 1) if row.startswith("inline")),
        "date": rows.index("date = 1979-05-27T07:32:00Z") + 1,
        "table.a": rows.index("a=1") + 1,
        "table.sub table.b": rows.index("b = true") + 1,
        "many.c": rows.index("c = 1") + 1,
        "last": len(rows),
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert not {"fake", "other", "comment", "inner", "text.key"} & lines.keys()
    assert tomllib.loads(NASTY)["dotted"] == {"a.b": {"c": 1.5e-3}}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_key_lines_of_a_shipped_recipe_has_every_key_on_a_line_that_names_it(path: Path) -> None:
    text = path.read_text()
    lines = key_lines(text)
    rows = text.splitlines()
    for leaf, is_written in leaves(tomllib.loads(text)):
        assert leaf in lines or not is_written
        assert leaf not in lines or leaf.rpartition(".")[2] in rows[lines[leaf] - 1]
