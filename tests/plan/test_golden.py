"""Every shipped recipe's plan, kept whole: a change of a default shows as a change of these files.

python -m tests.plan.test_golden    # writes them anew; read the diff
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import plan_dumps
from tpuctl.plan.source import find_source
from tpuctl.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


def golden_text(recipe: Path) -> str:
    loaded = load_recipe(recipe)
    return plan_dumps(resolve(loaded, environ={}, cwd="/work", source=find_source(loaded, environ={}, cwd="/work")))


def golden_path(recipe: Path) -> Path:
    return ROOT / "tests" / "golden" / f"{recipe.stem}.plan.json"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_plan_of_a_shipped_recipe_is_the_golden_one(recipe: Path) -> None:
    assert golden_text(recipe) == golden_path(recipe).read_text(), "python -m tests.plan.test_golden writes it anew"


def test_golden_plans_are_those_of_the_shipped_recipes() -> None:
    assert {path.name for path in (ROOT / "tests" / "golden").glob("*.plan.json")} == {
        golden_path(recipe).name for recipe in RECIPES
    }


if __name__ == "__main__":
    for shipped in RECIPES:
        golden_path(shipped).write_text(golden_text(shipped))
        print(golden_path(shipped))
