"""``tpuctl chat``: a conversation with an endpoint in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import EndpointArgument, ModelOption, Output, OutputOption

if TYPE_CHECKING:
    from tpuctl.endpoint.client import Endpoint

_PATH = "/v1/chat/completions"


def chat(
    url: EndpointArgument,
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="Ask this only; else a conversation.", show_default=False)
    ] = None,
    *,
    model: ModelOption = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told first.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Talk to an endpoint. A line is a message; Ctrl-C ends an answer, /new starts over, an empty line ends it all."""
    from tpuctl.endpoint.client import Endpoint

    endpoint = Endpoint.from_environ(url)
    talk = Talk(endpoint, model=endpoint.model(model), system=system)
    alone = message is not None or not sys.stdin.isatty()
    if not alone:
        console.say(f"{talk.model} at {endpoint.url}: a line is a message, /new starts over, an empty line ends it")
    for text in _messages(message):
        if text == "/new":
            talk.start_over()
            continue
        answer = (_shown if alone else _shown_or_explained)(talk.answers(text), show=output is Output.text)
        if output is Output.json:
            console.print_json({"schema": "tpuctl.chat/1", "model": talk.model, "answer": answer}, indent=None)


class Talk:
    """A conversation: everything said so far goes along with the next message."""

    def __init__(self, endpoint: Endpoint, *, model: str, system: str | None) -> None:
        self.model = model
        self._endpoint = endpoint
        self._system = system
        self.start_over()

    def start_over(self) -> None:
        """Forget what was said."""
        self.messages: list[dict[str, Any]] = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def answers(self, text: str) -> Iterator[str]:
        """The answer to a message, as it comes; what has come of it is remembered. A message that gets none is
        forgotten."""
        asked = [*self.messages, {"role": "user", "content": text}]
        parts: list[str] = []
        try:
            for chunk in self._endpoint.stream(_PATH, {"model": self.model, "messages": asked}):
                for choice in chunk["choices"]:
                    if part := choice["delta"].get("content"):
                        parts.append(part)
                        yield part
        finally:
            if parts:
                self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]


def _messages(only: str | None) -> Iterator[str]:
    if only is not None:
        yield only
        return
    read = _typed if sys.stdin.isatty() else sys.stdin.readline
    while line := read().strip():
        yield line


def _typed() -> str:
    """A line from the keyboard, which can be edited and called back; nothing at Ctrl-D or Ctrl-C."""
    # What importing it is for: input() then edits lines.
    import readline  # noqa: F401

    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        console.say("")
        return ""


def _shown_or_explained(parts: Iterator[str], *, show: bool) -> str:
    """As ``_shown``, but the conversation goes on whatever becomes of one answer."""
    from tpuctl.endpoint.client import RefusedError

    try:
        return _shown(parts, show=show)
    except RefusedError as error:
        console.say(f"{error.message}; /new starts over")
    except KeyboardInterrupt:
        console.say("\n(ended)")
    return ""


def _shown(parts: Iterator[str], *, show: bool) -> str:
    answer = ""
    for part in parts:
        answer += part
        if show:
            console.write(console.printable(part))
    if show:
        console.out("")
    return answer
