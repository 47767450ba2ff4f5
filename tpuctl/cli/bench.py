"""``tpuctl bench``: what an endpoint gives under load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import EndpointArgument, ModelOption, Output, OutputOption
from tpuctl.cli.place import local_file
from tpuctl.errors import ExitCode, UsageError

bench = typer.Typer(no_args_is_help=True, help="Measure what runs.")

_COLUMNS = ("AT ONCE", "REQUESTS", "FAILED", "TOKENS/S", "REQUESTS/S", "FIRST TOKEN p50/p99", "BETWEEN p50/p99")


@bench.callback()
def group() -> None:
    """Measure what runs."""


@bench.command()
def serve(
    url: EndpointArgument,
    *,
    model: ModelOption = None,
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", min=1, help="Requests at once; repeat for more. Default: 1, 8.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of each measurement.")] = 32,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Length of made-up prompts.")] = 128,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Tokens of each answer.")] = 128,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Prompts: a text file, one on each line.",
            parser=local_file,
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Put load on an endpoint, and show tokens per second and how long first and further tokens took."""
    from tpuctl.endpoint.client import Endpoint
    from tpuctl.endpoint.load import Load, measure

    endpoint = Endpoint.from_environ(url)
    name = endpoint.model(model)
    prompts = () if dataset is None else read_prompts(dataset)
    found: list[dict[str, Any]] = []
    for at_once in concurrency or [1, 8]:
        load = Load(
            model=name,
            concurrency=at_once,
            requests=requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prompts=prompts,
        )
        measured = measure(endpoint, load)
        found.append(measured.document())
        for reason in sorted(set(measured.failed)):
            console.say(f"failed: {reason}")
    if output is Output.json:
        console.print_json({"schema": "tpuctl.bench/1", "url": endpoint.url, "model": name, "measurements": found})
    else:
        console.table(_COLUMNS, [_row(item) for item in found])
    if any(item["failed"] for item in found):
        raise typer.Exit(ExitCode.JOB_FAILED)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The lines of a file that hold anything.

    Raises:
        UsageError: It can't be read, or there are none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from error
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        raise UsageError(f"{path} holds no prompts", hint="one on each line")
    return prompts


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    return (
        item["concurrency"],
        item["requests"],
        item["failed"],
        f"{item['output_tokens_per_second']:,.1f}",
        f"{item['requests_per_second']:,.2f}",
        _pair(item["first_token_seconds"]),
        _pair(item["between_tokens_seconds"]),
    )


def _pair(found: dict[str, float]) -> str:
    return f"{1000 * found['p50']:,.0f} / {1000 * found['p99']:,.0f} ms" if found else "-"
