"""A custom recipe as a plan: what runs, from where, and the rules between its keys."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import CustomPlan, plan_dumps, plan_loads
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source


def plan_of(**job: object) -> CustomPlan:
    values = {
        "kind": "custom",
        "run": {"name": "r"},
        "slice": {"accelerator": "v4", "topology": "2x2x2"},
        "job": job,
    }
    plan = resolve(build_recipe(Source(file="r.toml", values=values, lines={})), environ={}, cwd="/work")
    assert isinstance(plan, CustomPlan)
    return plan


def test_plan_of_a_command_has_its_words_and_an_absolute_directory_and_survives_json() -> None:
    plan = plan_of(command="python train.py 'a `b`'", working_directory="src", exclude=["*.ckpt"])
    assert plan.work.command == ("python", "train.py", "a `b`")
    assert (plan.work.directory, plan.work.exclude) == ("/work/src", ("*.ckpt",))
    assert (plan.entrypoint, plan.slice.total_hosts, plan.job.max_failures) == ("tpuctl.entrypoints.custom", 2, 0)
    assert plan_loads(plan_dumps(plan)) == plan


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({}, "neither of command and entrypoint given"),
        ({"command": "true", "entrypoint": "a:b"}, "both of command and entrypoint given"),
        ({"command": "true", "include": ["a"]}, "missing, but files are chosen from it"),
    ],
)
def test_plan_of_a_contradictory_custom_job_is_refused(job, message) -> None:
    with pytest.raises(RecipeError, match=message):
        plan_of(**job)
