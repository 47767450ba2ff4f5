"""``tpuctl schema``: the recipe's JSON Schema."""

from __future__ import annotations

from tpuctl.cli import console


def schema() -> None:
    """Print the JSON Schema of a recipe, for editors that complete TOML."""
    from tpuctl.recipe.jsonschema import recipe_schema

    console.print_json(recipe_schema())
