"""``tpuctl cluster``: simulated slices on this machine, and a look at the slices of any cluster."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import ClusterOption, Output, OutputOption, QuietOption
from tpuctl.cli.place import given
from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.cluster.address import Target
    from tpuctl.cluster.capacity import SliceView
    from tpuctl.cluster.registry import Cluster
    from tpuctl.cluster.simulated import ClusterStatus

app = typer.Typer(no_args_is_help=True, help="Simulated slices on this machine, and the slices of any cluster.")

_SLICE_COLUMNS = ("SLICE", "ACCELERATOR", "TOPOLOGY", "HOSTS", "CHIPS/HOST", "STATE")
_CLUSTER_COLUMNS = ("NAME", "STATE", "SLICES", "ADDRESS", "AGE")

NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="<str>", help="Name of the simulated cluster.", parser=given, show_default=False),
]


@app.command()
def up(
    accelerator: Annotated[str, typer.Option("--accelerator", help="A TPU name in any spelling.")] = "v6e",
    topology: Annotated[
        str | None, typer.Option("--topology", help="Shape in chips, e.g. 2x2x2. Default: 2x2.", show_default=False)
    ] = None,
    slices: Annotated[int, typer.Option("--slices", min=1, help="Number of equal slices.")] = 1,
    name: NameOption = None,
    cpus: Annotated[int, typer.Option("--cpus", min=1, help="Logical CPUs of each simulated host.")] = 4,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """Start simulated slices: Ray nodes on this machine that look like TPU hosts. Does nothing if they run."""
    from tpuctl.cluster import simulated
    from tpuctl.cluster.shape import NodeSize, SimulatedShape
    from tpuctl.topology import resolve_slice

    resolution = resolve_slice(accelerator, topology or _default_topology(accelerator))
    for note in () if quiet else resolution.notes:
        console.say(f"note: {note}")
    shape = SimulatedShape.from_slice(resolution.shape, slices=slices)
    cluster = simulated.up(shape, name=name, size=NodeSize(cpus=cpus))
    if output is Output.json:
        console.print_json({"schema": "tpuctl.cluster/1", **_cluster_document(cluster, ())})
    elif quiet:
        console.out(cluster.name)
    else:
        _say_up(cluster)


@app.command()
def down(
    name: NameOption = None,
    every: Annotated[bool, typer.Option("--all", help="End every simulated cluster.")] = False,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """End simulated clusters with all that runs on them, and clean what crashed ones left."""
    from tpuctl.cluster import simulated

    ended = [known for known in _names_to_end(name, every=every) if simulated.down(known)]
    if name and not ended:
        raise UsageError(f"there is no simulated cluster {name!r}", hint="`tpuctl cluster ls` lists them")
    if output is Output.json:
        console.print_json({"schema": "tpuctl.cluster.down/1", "ended": ended})
    elif quiet:
        for known in ended:
            console.out(known)
    else:
        console.out(f"ended {', '.join(ended)}" if ended else "no simulated cluster to end")


@app.command("ls")
def list_clusters(output: OutputOption = Output.text, quiet: QuietOption = False) -> None:
    """List the simulated clusters of this machine."""
    from tpuctl.cluster import simulated

    known = simulated.status()
    if output is Output.json:
        documents = [_cluster_document(entry.cluster, entry.problems) for entry in known]
        console.print_json({"schema": "tpuctl.clusters/1", "clusters": documents})
    elif quiet:
        for entry in known:
            console.out(entry.cluster.name)
    else:
        console.table(_CLUSTER_COLUMNS, [_cluster_row(entry) for entry in known])


@app.command()
def status(cluster: ClusterOption = None, output: OutputOption = Output.text, quiet: QuietOption = False) -> None:
    """Show the slices of a cluster: hosts alive, who holds them, and why one is not free."""
    from tpuctl.cluster import inspect, simulated
    from tpuctl.cluster.address import choose, open_session

    target = choose(cluster, running=simulated.running())
    with open_session(target.required()) as connection:
        views = inspect.slices(connection)
    if output is Output.json:
        console.print_json(_status_document(target, views))
    elif quiet:
        for view in views:
            console.out(view.name)
    else:
        console.say(f"cluster: {target}")
        console.table(_SLICE_COLUMNS, [_slice_row(view) for view in views])


def _default_topology(accelerator: str) -> str | None:
    """The smallest slice of one full host, unless the name says a size itself."""
    from tpuctl.topology import parse_accelerator

    name = parse_accelerator(accelerator)
    if name.topology is not None or name.chips is not None:
        return None
    return "2x2" if name.generation.dims == 2 else "2x2x1"


def _names_to_end(name: str | None, *, every: bool) -> list[str]:
    from tpuctl.cluster.registry import Registry

    known = Registry.at_home().names()
    if every:
        return known
    if name:
        return [name]
    if len(known) > 1:
        raise UsageError(f"there are several simulated clusters: {', '.join(known)}", hint="say --name or --all")
    return known


def _say_up(cluster: Cluster) -> None:
    if cluster.reused:
        console.say(f"already up: simulated cluster {cluster.name}")
    else:
        console.say(f"up in {cluster.phases['ready']:.1f} s: simulated cluster {cluster.name}, {cluster.shape}")
    console.say("its devices are CPUs; no speed measured there is a TPU's")
    console.out(cluster.address)


def _cluster_row(entry: ClusterStatus) -> tuple[object, ...]:
    cluster = entry.cluster
    state = "; ".join(entry.problems) or "up"
    minutes = (time.time() - cluster.created) / 60
    return (cluster.name, state, str(cluster.shape), cluster.address or "-", f"{minutes:.0f} min")


def _cluster_document(cluster: Cluster, problems: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "address": cluster.address,
        "token_path": cluster.token_path,
        "simulated": True,
        "reused": cluster.reused,
        "problems": list(problems),
        "shape": dataclasses.asdict(cluster.shape),
        "created": cluster.created,
        "phases": cluster.phases,
    }


def _slice_row(view: SliceView) -> tuple[object, ...]:
    from tpuctl.cluster.capacity import condition, generation_name

    simulated = " (simulated)" if view.simulated else ""
    expected = "?" if view.hosts_expected is None else view.hosts_expected
    return (
        view.name or "-",
        generation_name(view.accelerator_type) + simulated,
        view.topology or "-",
        f"{len(view.hosts)}/{expected}",
        view.chips_per_host,
        "; ".join(condition(view)) or "idle",
    )


def _status_document(target: Target, views: list[SliceView]) -> dict[str, Any]:
    from tpuctl.cluster.capacity import condition

    return {
        "schema": "tpuctl.cluster.status/1",
        "address": target.address,
        "source": target.source,
        "slices": [
            {
                **dataclasses.asdict(view),
                "hosts_expected": view.hosts_expected,
                "simulated": view.simulated,
                "problems": condition(view),
            }
            for view in views
        ],
    }
