"""``tpuctl plan``: what a recipe amounts to, as it would run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from tpuctl.plan.schema import Plan
    from tpuctl.recipe.schema import Recipe


def plan(recipe: RecipeArgument, set_: SetOption = None, output: OutputOption = Output.text) -> None:
    """Show what a recipe amounts to: every default filled in, the memory it takes, what was chosen for you."""
    from tpuctl.plan.environment import masked
    from tpuctl.plan.schema import plan_to_json

    decided = masked(resolve_recipe(recipe, set_ or ()))
    if output is Output.json:
        console.print_json(plan_to_json(decided))
    else:
        console.out(describe(decided))


def resolve_recipe(recipe: Path, overrides: Sequence[str]) -> Plan:
    """The plan of a recipe file here and now; its secrets are not masked."""
    from tpuctl.recipe.load import load_recipe

    return resolve_here(load_recipe(recipe, overrides=overrides))


def resolve_here(recipe: Recipe) -> Plan:
    """The plan of a loaded recipe here and now, once the model folder it may name has been looked into."""
    from tpuctl.plan.resolve import resolve
    from tpuctl.plan.source import read_source

    source = read_source(recipe, environ=os.environ, cwd=Path.cwd())
    return resolve(recipe, environ=os.environ, cwd=Path.cwd(), source=source)


def describe(plan: Plan) -> str:
    """A masked plan for people, one line per part."""
    from tpuctl.cli.describe import describe_infer, describe_train
    from tpuctl.plan.schema import InferJob, TrainJob

    own: list[tuple[str, str]] = []
    if isinstance(plan, TrainJob):
        own = describe_train(plan)
    elif isinstance(plan, InferJob):
        own = describe_infer(plan)
    lines = [
        ("run", f"{plan.run.name} in {plan.run.directory}"),
        ("slice", _slice(plan)),
        *own,
        ("job", _job(plan)),
        *(("note", note) for note in plan.notes),
    ]
    return "\n".join(f"{name:<10}  {text}" for name, text in lines)


def _slice(plan: Plan) -> str:
    slices = plan.slice
    several = slices.slices > 1
    count = f"{slices.slices} slices of " if several else ""
    chips = f"{slices.chips_per_host} chip{'s' * (slices.chips_per_host > 1)}"
    hosts = f"{slices.hosts} host{'s' * (slices.hosts > 1)} × {chips} ({slices.machine})"
    shape = f"{slices.generation} {slices.topology} ({slices.pod_type})"
    return f"{count}{shape}: {hosts}{' each' * several}, {slices.total_devices} devices"


def _job(plan: Plan) -> str:
    job = plan.job
    limit = f"at most {job.timeout_seconds:g} s" if job.timeout_seconds else "no time limit"
    variables = [f"{name}={value}" for name, value in {**job.env, **job.secrets}.items()]
    extras = [f"env {' '.join(variables)}"] * bool(variables) + [f"pip {' '.join(job.pip)}"] * bool(job.pip)
    return "; ".join([limit, f"{job.max_failures} restarts", *extras])
