"""What the verbs that run a recipe share: read it, see that it is theirs, launch its plan."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.options import Output
from tpuctl.errors import ExitCode, UsageError
from tpuctl.masking import MASK, looks_secret
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.plan.schema import JobKind, Plan
    from tpuctl.submit.files import Files

DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it running.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop, as `tpuctl plan` does.")]
WaitOption = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait so long for a free slice: 2h, 30m, 90.", show_default=False),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A command line that runs a recipe."""

    kind: JobKind
    recipe: Path
    overrides: list[str]
    cluster: str | None
    wait: str | None
    detach: bool
    dry_run: bool
    output: Output
    quiet: bool

    def command(self, *more: str) -> str:
        """The command line as a user would type it, ``more`` overrides added and secrets masked."""
        where = [] if self.cluster is None else ["--cluster", self.cluster]
        sets = [word for override in (*self.overrides, *more) for word in ("--set", _printable(override))]
        return shlex.join(["tpuctl", self.kind, str(self.recipe), *sets, *where])


@dataclass(frozen=True, kw_only=True, slots=True)
class Manner:
    """What is a kind's own: the words that close a good run, and the user's files that travel with the job."""

    closing: Callable[[Plan, dict[str, Event]], list[str]]
    files: Callable[[Plan], Files] = lambda _: {}


def run_recipe(asked: Asked, manner: Manner) -> ExitCode:
    """Launch the recipe's job and follow it to its end; or show its plan.

    Raises:
        UsageError: the recipe is wrong, or of another kind.
        ClusterError: as ``launch_and_follow`` does.
    """
    from tpuctl.cli.launch import Launching, launch_and_follow
    from tpuctl.cli.plan import resolve_here
    from tpuctl.recipe.load import load_recipe
    from tpuctl.recipe.values import parse_duration

    loaded = load_recipe(asked.recipe, overrides=asked.overrides)
    if loaded.kind != asked.kind:
        hint = f"run it with `tpuctl {loaded.kind} {asked.recipe}`"
        raise UsageError(f'{asked.recipe} has kind = "{loaded.kind}"', hint=hint)
    if asked.dry_run:
        from tpuctl.cli.plan import plan as show_plan

        show_plan(asked.recipe, asked.overrides, asked.output)
        return ExitCode.DONE
    plan = resolve_here(loaded)
    launching = Launching(
        plan=plan,
        files=manner.files(plan),
        flag=asked.cluster,
        recipe_address=loaded.cluster.address,
        wait_seconds=0.0 if asked.wait is None else parse_duration(asked.wait, option="--wait"),
        detach=asked.detach,
        output="ids" if asked.quiet else asked.output.value,
        again=asked.command(),
        closing=lambda last: manner.closing(plan, last),
    )
    return launch_and_follow(launching)


def _printable(override: str) -> str:
    key, equals, _ = override.partition("=")
    secret = key.strip().startswith("job.secrets") or looks_secret(key.strip().rpartition(".")[2])
    return f"{key}{equals}{MASK}" if secret else override
