"""``tpuctl check``: is this recipe right?"""

from __future__ import annotations

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, RecipeArgument, SetOption


def check(recipe: RecipeArgument, set_: SetOption = None, output: OutputOption = Output.text) -> None:
    """Check a recipe without contacting anything. Exit code 2 and all errors if something is wrong."""
    from tpuctl.cli.plan import resolve_recipe

    notes = resolve_recipe(recipe, set_ or ()).notes
    if output is Output.json:
        console.print_json({"schema": "tpuctl.check/1", "recipe": str(recipe), "ok": True, "notes": list(notes)})
        return
    for note in notes:
        console.say(f"note: {note}")
    console.out(f"{recipe}: ok")
