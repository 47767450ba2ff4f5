"""Every option the verbs share, declared once, so that a flag means the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli.place import given, local_file


class Output(StrEnum):
    """The form of what goes to stdout."""

    text = "text"
    json = "json"


RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file.", parser=local_file, show_default=False)
]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `jobs ls` shows it.", parser=given)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="Override one key of the recipe; repeat for more.", show_default=False
    ),
]
EndpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The endpoint's address, e.g. http://127.0.0.1:8000.", parser=given, show_default=False
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Default: the endpoint's first.", parser=given, show_default=False),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="What stdout carries.")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it running.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop, as `tpuctl plan` does.")]
WaitOption = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait so long for a free slice: 2h, 30m, 90.", show_default=False),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="URL",
        parser=given,
        help="Address of the Ray dashboard, e.g. http://head:8265. Default: the recipe's, then TPUCTL_CLUSTER, then "
        "RAY_API_SERVER_ADDRESS, then a simulated slice on this machine.",
        show_default=False,
    ),
]
