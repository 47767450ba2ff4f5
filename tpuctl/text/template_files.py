"""Where a model's folder keeps its chat templates: ``chat_template.jinja``, ``chat_templates/``, or the config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuctl.errors import DataError
from tpuctl.text.special import read_object

DEFAULT = "default"
_TOOL_USE = "tool_use"


def find_templates(folder: Path) -> dict[str, str]:
    """The chat templates of a folder by name; most have one, ``default``, or none.

    Files count before the config, as with transformers.

    Raises:
        DataError: a config that is none, or a template in it that is no text.
    """
    files = {file.stem: file for file in sorted((folder / "chat_templates").glob("*.jinja"))}
    single = folder / "chat_template.jinja"
    if single.is_file():
        files = {DEFAULT: single, **files}
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    return _in_config(folder / "tokenizer_config.json") or _in_config(folder / "chat_template.json")


def choose_template(templates: Mapping[str, str], *, name: str | None = None, with_tools: bool = False) -> str:
    """The template to use: the named one, that for tools where there are tools and such a one, else the default.

    Raises:
        DataError: there is none, or several and no default.
    """
    wanted = [name] if name else [*([_TOOL_USE] if with_tools else []), DEFAULT]
    found = next((templates[each] for each in wanted if each in templates), None)
    if found is not None:
        return found
    if not templates:
        raise DataError(
            "the tokenizer has no chat template", hint="put a chat_template.jinja beside it, or name one in the recipe"
        )
    raise DataError(
        f"no chat template {' or '.join(map(repr, wanted))} among {', '.join(sorted(templates))}",
        hint="choose one of them",
    )


def _in_config(path: Path) -> dict[str, str]:
    found: Any = read_object(path).get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {DEFAULT: found}
    if isinstance(found, list):
        try:
            found = {entry["name"]: entry["template"] for entry in found}
        except (TypeError, KeyError):
            found = None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise DataError(f"{path}: chat_template is neither a text nor a list of named ones")
    return found
