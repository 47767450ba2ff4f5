"""A plan from a small good recipe with overrides; no file of the user's is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import Plan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source

GOOD = {
    "kind": "train",
    "run": {"name": "r"},
    "slice": {"accelerator": "v6e", "topology": "2x2"},
    "model": {"preset": "tiny-1m"},
    "data": {"uri": "data/train", "eval_uri": "data/held-out"},
    "train": {"steps": 100, "global_batch": 8, "sequence_length": 128},
}

MakePlan = Callable[..., Plan]


@pytest.fixture
def make_plan() -> MakePlan:
    """``make_plan("train.steps=5", environ={})``: the good recipe, resolved in ``/work``."""

    def make(*overrides: str, environ: Mapping[str, str] | None = None) -> Plan:
        recipe = build_recipe(Source(file="r.toml", values=GOOD, lines={}), overrides=overrides)
        return resolve(recipe, environ=environ or {"HOME": "/home/me"}, cwd="/work")

    return make
