"""Reading a recipe file: text, TOML, and the line on which every key stands.

``tomllib`` gives values without positions, so a small scanner walks the same text for the lines. It only has to be
right on text that ``tomllib`` has already accepted.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.errors import RecipeError, Where

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)|(?P<comment>\#[^\n]*)|(?P<newline>\n)
    |(?P<string>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<mark>[\[\]{}=,.])|(?P<bare>[^\s\[\]{}=,."'\#]+)""",
    re.VERBOSE | re.DOTALL,
)
_TOML_PLACE = re.compile(r"\s*\((?:at line (?P<line>\d+), column \d+|at end of document)\)")
_LARGEST_RECIPE_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A recipe file as it was read."""

    file: str
    values: dict[str, Any]
    lines: dict[str, int]


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def read_source(path: Path, *, wanted: str | None = None) -> Source:
    """The TOML of a file, with the line of each key. ``wanted``: the kind to propose where there is no file.

    Raises:
        RecipeError: no such file, not readable as UTF-8 text, or not TOML; names file and line.
    """
    file = str(path)
    text = _read_text(path, file, wanted=wanted or "KIND")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, text, file) from error
    except ValueError as error:
        # Python's own limit on the digits of an integer, which tomllib lets through without a place.
        raise RecipeError("a number has too many digits", where=Where(file=file, line=_line_of_digits(text))) from error
    except RecursionError as error:
        raise RecipeError("nested too deeply", where=Where(file=file)) from error
    return Source(file=file, values=values, lines=key_lines(text))


def key_lines(text: str) -> dict[str, int]:
    """The line (from 1) of every key and table of a TOML text, by dotted path; the first where one comes twice."""
    lines: dict[str, int] = {}
    for path, line in _paths(text):
        lines.setdefault(path, line)
    return lines


def _read_text(path: Path, file: str, *, wanted: str) -> str:
    try:
        if path.stat().st_size > _LARGEST_RECIPE_BYTES and path.is_file():
            raise RecipeError("too large for a recipe", hint="is this the right file?", where=Where(file=file))
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        new = f"`tpuctl init {wanted} {shlex.quote(file)}` writes one"
        hint = new if path.suffix == ".toml" else "a recipe is a .toml file"
        raise RecipeError("no such file", hint=hint, where=Where(file=file)) from error
    except IsADirectoryError as error:
        raise RecipeError("is a directory", hint="name the .toml file in it", where=Where(file=file)) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RecipeError("not UTF-8 text", hint="save it as UTF-8", where=Where(file=file, line=line)) from error
    except OSError as error:
        raise RecipeError(f"can't be read: {error.strerror}", where=Where(file=file)) from error


def _line_of_digits(text: str) -> int | None:
    lines = text.split("\n")
    longest = max(range(len(lines)), key=lambda at: max(map(len, re.findall(r"[0-9_]+", lines[at])), default=0))
    return longest + 1


def _syntax_error(error: tomllib.TOMLDecodeError, text: str, file: str) -> RecipeError:
    message = str(error)
    place = _TOML_PLACE.search(message)
    reason = _TOML_PLACE.sub("", message)
    line = int(place["line"]) if place and place["line"] else text.count("\n") + (not text.endswith("\n"))
    if "overwrite" in reason or "Cannot declare" in reason or "Cannot mutate" in reason:
        return _duplicate(text, line, file) or RecipeError(reason, where=Where(file=file, line=line))
    hint = _syntax_hint(reason, at_end="at end of document" in message)
    return RecipeError(f"not TOML: {reason[:1].lower()}{reason[1:]}", hint=hint, where=Where(file=file, line=line))


def _syntax_hint(reason: str, *, at_end: bool) -> str | None:
    if reason.startswith(("Unterminated string", "Expected \"'", "Illegal character '\\n'")):
        return 'a string is not closed: it ends with the quotes it begins with, on the same line; """ may span lines'
    if reason == "Invalid value" and at_end:
        return "a list is not closed, or the last key has no value"
    if reason == "Invalid value":
        return 'text needs quotes, as in name = "x"; true and false are small; a number begins with a digit'
    return None


def _duplicate(text: str, until: int, file: str) -> RecipeError | None:
    first: dict[str, int] = {}
    for path, line in _paths(text):
        if path in first and line <= until and first[path] != line:
            message = f"set twice: already on line {first[path]}"
            return RecipeError(message, hint="keep one of the two", where=Where(file=file, line=line, key=path))
        first.setdefault(path, line)
    return None


def _paths(text: str) -> Iterator[tuple[str, int]]:
    """Every (dotted path, line) in the order written; tables and keys alike."""
    tokens = _Tokens(text)
    table: tuple[str, ...] = ()
    while (token := tokens.next_statement()) is not None:
        if token.text == "[":
            double = tokens.take("[")
            table = tokens.key()
            yield ".".join(table), token.line
            tokens.take("]")
            if double:
                tokens.take("]")
        else:
            tokens.back()
            yield from _assignment(tokens, table)


def _assignment(tokens: _Tokens, prefix: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """One ``key = value``; an inline table's keys come after it."""
    line = tokens.line
    path = (*prefix, *tokens.key())
    yield ".".join(path), line
    tokens.take("=")
    yield from _value(tokens, path)


def _value(tokens: _Tokens, path: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if tokens.take("{"):
        while not tokens.take("}") and not tokens.at_end:
            yield from _assignment(tokens, path)
            tokens.take(",")
        return
    depth = 0
    while not tokens.at_end:
        text = tokens.peek.text
        if depth == 0 and (text in (",", "}") or tokens.peek.kind == "newline"):
            return
        depth += (text in "[{") - (text in "]}") if tokens.peek.kind == "mark" else 0
        tokens.advance()


class _Tokens:
    """A cursor over the tokens of a TOML text; spaces and comments are left out."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokenised(text))
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    @property
    def peek(self) -> _Token:
        return self._tokens[self._at]

    @property
    def line(self) -> int:
        return self.peek.line

    def advance(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def back(self) -> None:
        self._at -= 1

    def take(self, mark: str) -> bool:
        """Step over a mark if it comes next."""
        found = not self.at_end and self.peek.kind == "mark" and self.peek.text == mark
        self._at += found
        return found

    def next_statement(self) -> _Token | None:
        while not self.at_end and self.peek.kind == "newline":
            self.advance()
        return None if self.at_end else self.advance()

    def key(self) -> tuple[str, ...]:
        """A dotted key, up to the mark that ends it."""
        parts: list[str] = []
        while not self.at_end and self.peek.kind in ("bare", "string"):
            parts.append(_unquoted(self.advance()))
            if not self.take("."):
                break
        return tuple(parts)


def _tokenised(text: str) -> Iterator[_Token]:
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:  # only in text that is not TOML: step over it
            at += 1
            continue
        kind = str(match.lastgroup)
        if kind not in ("space", "comment"):
            yield _Token(kind, match.group(), line)
        line += match.group().count("\n")
        at = match.end()


def _unquoted(token: _Token) -> str:
    if token.kind == "bare" or token.text.startswith("'"):
        return token.text.strip("'")
    return str(tomllib.loads(f"key = {token.text}")["key"])
