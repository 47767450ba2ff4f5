"""A small good recipe, and a way to load changed copies of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tpuctl.recipe.load import load_recipe
from tpuctl.recipe.schema import Recipe

GOOD = """\
kind = "train"

[slice]
accelerator = "v6e"
topology = "2x2"

[model]
preset = "tiny-1m"

[data]
uri = "builtin:python-stdlib"

[train]
steps = 20
global_batch = 8
"""

Load = Callable[..., Recipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load TOML text (the good recipe if none) as ``recipe.toml``; bytes are written as they are."""

    def load_text(text: str | bytes = GOOD, overrides: Sequence[str] = ()) -> Recipe:
        path = tmp_path / "recipe.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_recipe(path, overrides=overrides)

    return load_text


@pytest.fixture
def good() -> str:
    return GOOD
