"""From a launching verb's words to its job: the recipe read, the plan made, the options checked, the job started."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tpuctl.cli.options import (
    ClusterOption,
    DetachOption,
    DryRunOption,
    Output,
    OutputOption,
    QuietOption,
    RecipeArgument,
    SetOption,
    WaitOption,
)
from tpuctl.errors import ExitCode, UsageError
from tpuctl.masking import MASK, looks_secret

if TYPE_CHECKING:
    from tpuctl.plan.schema import JobKind, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a launching verb was asked for. ``kinds``: those of recipe it takes; empty for any."""

    verb: str
    kinds: tuple[JobKind, ...]
    recipe: Path
    overrides: Sequence[str]
    cluster: str | None
    wait: str | None
    detach: bool
    dry_run: bool
    output: Output
    quiet: bool

    @property
    def wanted(self) -> JobKind:
        """The kind of recipe to propose where there is none."""
        return self.kinds[0] if self.kinds else "custom"


def launching_verb(verb: str, *, kind: JobKind, about: str) -> Callable[..., None]:
    """The command that launches recipes of one kind; ``about`` is what its help says."""

    def command(
        recipe: RecipeArgument,
        *,
        set_: SetOption = None,
        cluster: ClusterOption = None,
        wait: WaitOption = None,
        detach: DetachOption = False,
        dry_run: DryRunOption = False,
        output: OutputOption = Output.text,
        quiet: QuietOption = False,
    ) -> None:
        asked = Asked(
            verb=verb,
            kinds=(kind,),
            recipe=recipe,
            overrides=set_ or (),
            cluster=cluster,
            wait=wait,
            detach=detach,
            dry_run=dry_run,
            output=output,
            quiet=quiet,
        )
        raise typer.Exit(start(asked))

    command.__doc__ = about
    return command


def start(asked: Asked) -> ExitCode:
    """Launch the recipe's job and follow it, or show its plan where that is all that was asked for.

    Raises:
        UsageError: the recipe is wrong or not for this verb, or an option is no duration or address.
    """
    from tpuctl.cli.launch import Launching, launch_and_follow
    from tpuctl.cli.plan import resolve_here, show
    from tpuctl.recipe.load import load_recipe

    wait_seconds = _checked_options(asked)
    loaded = load_recipe(asked.recipe, overrides=asked.overrides, wanted=asked.wanted)
    if asked.kinds and loaded.kind not in asked.kinds:
        hint = f"write: {shlex.join(['tpuctl', _verb_of(loaded.kind), str(asked.recipe)])}"
        raise UsageError(f"{asked.recipe}: `tpuctl {asked.verb}` takes no recipe of kind {loaded.kind!r}", hint=hint)
    plan = resolve_here(loaded)
    if asked.dry_run:
        show(plan, asked.output)
        return ExitCode.DONE
    launching = Launching(
        plan=plan,
        flag=asked.cluster,
        recipe_address=loaded.cluster.address,
        wait_seconds=wait_seconds,
        detach=asked.detach,
        output="ids" if asked.quiet else asked.output.value,
        again=command_line(asked),
        further=_further(asked, plan),
    )
    return launch_and_follow(launching)


def command_line(asked: Asked, *more: str) -> str:
    """The command that asks for the same again, with ``more`` overrides in place of those of the same keys.

    No secret is in it.
    """
    where = [] if asked.cluster is None else ["--cluster", asked.cluster]
    renewed = {_key(override) for override in more}
    overrides = [*(override for override in asked.overrides if _key(override) not in renewed), *more]
    sets = [word for override in overrides for word in ("--set", _printable(override))]
    return shlex.join(["tpuctl", asked.verb, str(asked.recipe), *sets, *where])


def _verb_of(kind: JobKind) -> str:
    return "run" if kind == "custom" else kind


def _checked_options(asked: Asked) -> float:
    """Seconds to wait. A dry run too says what is wrong with its options: the next run will have the same."""
    from tpuctl.recipe.durations import parse_duration

    if asked.cluster is not None:
        from tpuctl.connection import parse_address

        parse_address(asked.cluster)
    return 0.0 if asked.wait is None else parse_duration(asked.wait, option="--wait")


def _further(asked: Asked, plan: Plan) -> str | None:
    from tpuctl.plan.schema import TrainingPlan

    return command_line(asked, f"train.steps={2 * plan.train.steps}") if isinstance(plan, TrainingPlan) else None


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _printable(override: str) -> str:
    key, equals, _ = override.partition("=")
    secret = key.strip().startswith("job.secrets") or looks_secret(key.strip().rpartition(".")[2])
    return f"{key}{equals}{MASK}" if secret else override
