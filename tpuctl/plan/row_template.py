"""Templates over a row's columns: text with names in braces. Pure, and read alike on both sides."""

from __future__ import annotations

import string


def parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """Literal text and the column whose value comes after it, in turns; the last may have none.

    Raises:
        ValueError: in words, what is no template.
    """
    found: list[tuple[str, str | None]] = []
    for literal, column, spec, conversion in string.Formatter().parse(template):
        if column == "":
            raise ValueError("{} names no column; a brace that stands for itself is doubled: {{}}")
        if column is not None and (spec or conversion):
            raise ValueError(f"{{{column}}} has more than a column's name in its braces")
        found.append((literal, column))
    return tuple(found)


def columns(template: str) -> tuple[str, ...]:
    """The columns that a template names; raises as ``parts`` does."""
    return tuple(dict.fromkeys(column for _, column in parts(template) if column is not None))
