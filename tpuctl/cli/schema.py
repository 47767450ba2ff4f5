"""``tpuctl schema``: the recipe's JSON Schema."""

from __future__ import annotations

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption


def schema(output: OutputOption = Output.json) -> None:
    """Print the JSON Schema of a recipe, for editors that complete TOML; JSON in either output."""
    from tpuctl.recipe.jsonschema import recipe_schema

    console.print_json(recipe_schema())
