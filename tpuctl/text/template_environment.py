"""The Jinja dialect of chat templates, as transformers defines it: what a template may call, and nothing else.

Templates come with models, from strangers: they run in Jinja's immutable sandbox, and see plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

Clock = Callable[[], datetime]


@dataclass(kw_only=True, slots=True)
class Rendering:
    """A rendering under way: the text so far, and the spans that ``{% generation %}`` blocks have written."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    generated: list[tuple[int, int]] = field(default_factory=list)

    def add(self, part: str) -> None:
        """Append what the template has given next."""
        self.parts.append(part)
        self.length += len(part)


_RENDERING: ContextVar[Rendering | None] = ContextVar("rendering", default=None)


@contextmanager
def rendering() -> Iterator[Rendering]:
    """Within it, generation blocks note where they write."""
    now = Rendering()
    token = _RENDERING.set(now)
    try:
        yield now
    finally:
        _RENDERING.reset(token)


class GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}``: its content is what the model is to write itself."""

    tags = {"generation"}  # noqa: RUF012 — Jinja's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The block as a call that sees its content once it is rendered."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_noted"), [], [], body).set_lineno(line)

    def _noted(self, caller: Callable[[], str]) -> str:
        text = caller()
        now = _RENDERING.get()
        if now is not None:
            # All that precedes the block in the template has been given out, so the text so far ends here.
            now.generated.append((now.length, now.length + len(text)))
        return text


@lru_cache(maxsize=64)
def compiled(source: str, *, clock: Clock) -> jinja2.Template:
    """The template of a source text.

    Raises:
        jinja2.TemplateSyntaxError: it is none.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter writes <, > and & for HTML, and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Dict:
    """``dict`` without the attributes of a class."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """As of ``dict``."""
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` without names that begin with an underscore: Python's own could be reached through them."""

    def __init__(*args: Any, **names: Any) -> None:  # so that a template may set a name ``self``
        self, *initial = args
        values = dict(*initial, **names)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}: it begins with an underscore")
