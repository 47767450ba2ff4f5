"""``tpuctl serve``: a model behind an endpoint, and the endpoints there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from tpuctl.cli import console
from tpuctl.cli.logs import logs
from tpuctl.cli.options import (
    ClusterOption,
    JobArgument,
    Output,
    OutputOption,
    QuietOption,
    RecipeArgument,
    SetOption,
)
from tpuctl.cli.start import launching_verb
from tpuctl.cli.stop import stop
from tpuctl.cli.target import open_jobs
from tpuctl.errors import StorageError, UsageError

if TYPE_CHECKING:
    from tpuctl.submit.jobs import JobInfo

_COLUMNS = ("ID", "STATUS", "MODEL", "URL", "SLICE")
_HELP = (
    "Serve a model behind OpenAI's API: `tpuctl serve RECIPE` is short for `tpuctl serve run RECIPE`. "
    "A recipe that is called like a subcommand is written ./NAME."
)


class RecipeOrSubcommand(TyperGroup):
    """A group whose first word is a subcommand, or else what its ``run`` takes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` before anything that is no subcommand."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


serve = typer.Typer(cls=RecipeOrSubcommand, no_args_is_help=True, help=_HELP)


serve.command("run")(
    launching_verb(
        "serve",
        kind="serve",
        about="Serve a model until it is stopped: reserve the slice, load, compile, check, answer. Ctrl-C leaves it "
        "running.",
    )
)


@serve.command()
def config(recipe: RecipeArgument, set_: SetOption = None) -> None:
    """Print the Ray Serve config of a recipe with serve.engine = "vllm", as YAML for `serve deploy` and KubeRay."""
    import json

    import yaml

    from tpuctl.cli.plan import resolve_recipe
    from tpuctl.plan.schema import ServingPlan

    plan = resolve_recipe(recipe, set_ or ())
    if not isinstance(plan, ServingPlan) or plan.handover is None:
        raise UsageError("only a recipe that hands over to vLLM has such a config", hint='serve.engine = "vllm"')
    console.out(yaml.safe_dump(json.loads(plan.handover), sort_keys=False).rstrip())


@serve.command()
def ls(output: OutputOption = Output.text, quiet: QuietOption = False, cluster: ClusterOption = None) -> None:
    """List the endpoints of the cluster, newest first."""
    with open_jobs(cluster) as opened:
        found = [info for info in opened.list() if info.metadata.get("tpuctl_kind") == "serve"]
    documents = [_document(info) for info in found]
    if quiet:
        for document in documents:
            console.out(document["id"])
    elif output is Output.json:
        console.print_json({"schema": "tpuctl.endpoints/1", "endpoints": documents})
    else:
        keys = ("id", "status", "model", "url", "slice")
        console.table(_COLUMNS, [tuple(document[key] or "-" for key in keys) for document in documents])


@serve.command()
def status(job: JobArgument, output: OutputOption = Output.text, cluster: ClusterOption = None) -> None:
    """Show one endpoint: whether it is ready, its URL, and what it is at."""
    with open_jobs(cluster, job=job) as opened:
        info = opened.info(job)
    if info.metadata.get("tpuctl_kind") != "serve":
        raise UsageError(f"job {job} is no endpoint", hint=f"tpuctl jobs show {job}")
    document = {**_document(info), "answers": None}
    if document["url"] and not info.status.terminal:
        document["answers"] = _answers(document["url"])
    if output is Output.json:
        console.print_json({"schema": "tpuctl.endpoint/1", **document})
        return
    for key, value in document.items():
        if value is not None:
            console.out(f"{key}: {value}")


serve.command()(stop)
serve.command()(logs)


def _document(info: JobInfo) -> dict[str, Any]:
    where = info.metadata
    ready = _ready(where.get("tpuctl_directory"))
    return {
        "id": info.submission_id,
        "status": str(info.status),
        "model": ready.get("model"),
        "url": None if info.status.terminal else ready.get("url"),
        "slice": where.get("tpuctl_slice"),
        "directory": where.get("tpuctl_directory"),
    }


def _ready(directory: str | None) -> dict[str, Any]:
    """What the endpoint said of itself when it last was ready; nothing where its run directory can't be read."""
    from tpuctl.runs.record import read_events

    try:
        events = read_events(directory) if directory else []
    except StorageError:
        return {}
    return next((item for item in reversed(events) if item["event"] == "ready"), {})


def _answers(url: str) -> str:
    """What the endpoint itself says, if it can be reached from here."""
    import httpx

    try:
        return str(httpx.get(f"{url}/ready", timeout=5).json()["status"])
    except (httpx.HTTPError, ValueError, KeyError):
        return "can't be reached from here"
