"""What is written from the schema: the reference page, the JSON Schema."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import pytest

from tpuctl.recipe.jsonschema import recipe_schema
from tpuctl.recipe.reference import reference_page
from tpuctl.recipe.schema import RECIPES
from tpuctl.recipe.settings import keys_of

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*.toml"))


def test_reference_page_in_docs_is_the_one_the_schema_gives() -> None:
    page = (ROOT / "docs" / "recipe.md").read_text()
    assert page == reference_page(), "python -m tpuctl.recipe.reference > docs/recipe.md"


@pytest.mark.parametrize("kind", RECIPES)
def test_every_key_explains_itself(kind) -> None:
    for path, key in keys_of(RECIPES[kind]).items():
        assert key.rules.doc.endswith("."), path
        assert key.required or key.default is not None or key.rules.absent or key.rules.example, path


def test_recipe_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(recipe_schema())


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda path: path.stem)
def test_recipe_schema_accepts_shipped_recipes(recipe: Path) -> None:
    jsonschema.validate(tomllib.loads(recipe.read_text()), recipe_schema(), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("steps = 20", 'steps = "20"'),
        ("steps = 20", "steps = 0"),
        ("steps = 20", "stesp = 20"),
        ("[train]", "[trian]"),
        ('kind = "train"', 'kind = "cook"'),
        ('name = "smoke"', 'name = "a b"'),
        ("keep = 2", "keep = 0"),
        ("keep = 2", 'resume = "perhaps"'),
        ('kind = "train"', ""),
    ],
)
def test_recipe_schema_refuses_what_the_loader_refuses(load, old, new) -> None:
    from tpuctl.errors import RecipeError

    text = (ROOT / "recipes" / "smoke.toml").read_text().replace(old, new, 1)
    assert not jsonschema.Draft202012Validator(recipe_schema()).is_valid(tomllib.loads(text))
    with pytest.raises(RecipeError):
        load(text)
