"""The command tree and the single border where errors become words and exit codes."""

from __future__ import annotations

import io
import os
import re
import sys
from itertools import pairwise
from typing import NoReturn

import typer

from tpuctl.cli import cluster, console, tokenizer
from tpuctl.cli.bench import bench
from tpuctl.cli.chat import chat
from tpuctl.cli.check import check
from tpuctl.cli.export import export
from tpuctl.cli.infer import infer
from tpuctl.cli.init import init
from tpuctl.cli.jobs import jobs
from tpuctl.cli.logs import logs
from tpuctl.cli.models import models
from tpuctl.cli.options import Output, OutputOption
from tpuctl.cli.plan import plan
from tpuctl.cli.run import run as run_recipe
from tpuctl.cli.schema import schema
from tpuctl.cli.serve import serve
from tpuctl.cli.slices import slices
from tpuctl.cli.stop import stop
from tpuctl.cli.train import train
from tpuctl.errors import ExitCode, TpuctlError, UsageError

app = typer.Typer(
    name="tpuctl",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def tpuctl() -> None:
    """Launch TPU jobs: a TOML recipe in, one intact slice, the logs in your terminal."""


@app.command()
def version(output: OutputOption = Output.text) -> None:
    """Print the version."""
    from tpuctl import __version__

    if output is Output.json:
        console.print_json({"schema": "tpuctl.version/1", "version": __version__})
    else:
        console.out(__version__)


app.command("train")(train)
app.command("infer")(infer)
for _verb in (run_recipe, plan, check, init, schema, slices, logs, stop, export, chat):
    app.command()(_verb)
app.add_typer(serve, name="serve")
app.add_typer(bench, name="bench")
app.add_typer(jobs, name="jobs")
app.add_typer(models, name="models")
app.add_typer(cluster.app, name="cluster")
app.add_typer(tokenizer.app, name="tokenizer")


def main() -> NoReturn:
    """Run the command line and exit. Every error of the program passes through here."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that can't show a character of a log must not end the following of it.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return ExitCode.DETACHED
    except (console.ReaderLeftError, BrokenPipeError):
        return _leave_stdout(141)
    except console.StdoutError as error:
        console.say_error(TpuctlError(f"stdout can't be written: {error}"))
        return _leave_stdout(ExitCode.JOB_FAILED)


def _run(argv: list[str]) -> int:
    try:
        return int(typer.main.get_command(app).main(argv, prog_name="tpuctl", standalone_mode=False) or 0)
    except typer.Exit as request:
        return request.exit_code
    except typer.Abort:
        return ExitCode.DETACHED
    except TpuctlError as error:
        return _explain(error, argv)
    except (console.ReaderLeftError, console.StdoutError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 — the border: anything else is a fault of ours, said in one line
        return _confess(error, argv)


def _explain(error: TpuctlError, argv: list[str]) -> int:
    if os.environ.get("TPUCTL_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
    console.say_error(error)
    if _wants_json(argv):
        console.print_json(console.error_document(error), indent=None)
    return error.exit_code


def _confess(error: Exception, argv: list[str]) -> int:
    if isinstance(error, OSError):
        console.write("")  # help is printed by typer: what it could not write is still to be flushed, and fails again
    show = getattr(error, "show", None)
    if show is not None:  # typer's usage errors know how to say themselves
        show()
        if _wants_json(argv):
            message = str(getattr(error, "message", error))
            console.print_json(console.error_document(UsageError(message)), indent=None)
        return int(getattr(error, "exit_code", ExitCode.USAGE))
    fault = TpuctlError(
        f"internal error: {type(error).__name__}: {error}", hint="TPUCTL_TRACEBACK=1 shows where; please report it"
    )
    fault.__cause__ = error
    return _explain(fault, argv)


def _wants_json(argv: list[str]) -> bool:
    """Whether ``-o json`` was asked for, in any of its spellings; the command line may be too wrong to be parsed."""
    apart = any(word == "json" and re.fullmatch(r"--output|-[a-z]*o", option) for option, word in pairwise(argv))
    return apart or any(re.fullmatch(r"--output=json|-[a-z]*o=?json", word) for word in argv)


def _leave_stdout(exit_code: int) -> int:
    """Stdout takes no more: point it at nothing, so that the interpreter's last flush is silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code
