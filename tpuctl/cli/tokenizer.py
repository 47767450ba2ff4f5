"""``tpuctl tokenizer``: make a tokenizer of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, QuietOption
from tpuctl.cli.place import given, place, require_folder
from tpuctl.errors import TpuctlError, UsageError

app = typer.Typer(no_args_is_help=True, help="Tokenizers of your own.")

_MODULE = "tpuctl.entrypoints.tokenizer"


@app.callback()
def tokenizer() -> None:
    """Tokenizers of your own."""


@app.command()
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Parquet file, folder, glob or built-in text.", parser=given, show_default=False
        ),
    ],
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Where to put it, local or gs://; made if it isn't there.",
            parser=given,
            show_default=False,
        ),
    ],
    *,
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", min=257, max=1_000_000, help="Ids it may have at most.")
    ] = 32768,
    text_column: Annotated[str, typer.Option("--text-column", help="Column that holds the text.")] = "text",
    messages_column: Annotated[
        str | None,
        typer.Option("--messages-column", help="Column of conversations to take instead.", show_default=False),
    ] = None,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """Train a byte-level BPE on your text: tokenizer.json and its config. The same text gives the same file."""
    kind, column = ("text", text_column) if messages_column is None else ("messages", messages_column)
    if "://" in data:
        data = place(data)
    where = place(folder)
    if "://" not in where:
        require_folder(Path(where))
    request = {"uri": data, "kind": kind, "column": column, "vocab_size": vocab_size, "folder": where}
    if not quiet and output is Output.text:
        console.say(f"training a byte-level BPE of {vocab_size} ids on {data}")
    trained = _answer(request)
    if output is Output.json:
        console.print_json({"schema": "tpuctl.tokenizer/1", **trained})
        return
    console.out(str(trained["path"]))
    if not quiet:
        few = "" if trained["ids"] == vocab_size else f", of {vocab_size} asked for: there is little text"
        console.say(f"{trained['ids']} ids{few}; next: set data.tokenizer to {folder}")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the other process says: only it loads numpy, pyarrow and the tokenizers library."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", _MODULE], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise TpuctlError(f"the tokenizer's trainer ended with exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" not in answer:
        return answer
    kind = UsageError if answer["usage"] else TpuctlError
    raise kind(answer["error"], hint=answer["hint"])
