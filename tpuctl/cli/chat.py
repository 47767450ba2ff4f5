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
    """Talk to an endpoint. A line is a message; /new starts over, an empty line or Ctrl-D ends it."""
    from tpuctl.endpoint.client import Endpoint

    endpoint = Endpoint.from_environ(url)
    talk = Talk(endpoint, model=endpoint.model(model), system=system)
    for text in _messages(message):
        if text == "/new":
            talk.start_over()
            continue
        answer = _shown(talk.answers(text), show=output is Output.text)
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
        """The answer to a message, as it comes. A message that gets none is forgotten."""
        asked = [*self.messages, {"role": "user", "content": text}]
        parts: list[str] = []
        for chunk in self._endpoint.stream(_PATH, {"model": self.model, "messages": asked}):
            for choice in chunk["choices"]:
                if part := choice["delta"].get("content"):
                    parts.append(part)
                    yield part
        self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]


def _messages(only: str | None) -> Iterator[str]:
    if only is not None:
        yield only
        return
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line.strip():
            return
        yield line.rstrip("\n")


def _shown(parts: Iterator[str], *, show: bool) -> str:
    answer = ""
    for part in parts:
        answer += part
        if show:
            console.write(console.printable(part))
    if show:
        console.out("")
    return answer
