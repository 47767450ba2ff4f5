"""One set of versions: what pip is given in constraints.txt is what uv is given in pyproject.toml."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_constraints_file_and_uv_constraints_are_equal() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["uv"]["constraint-dependencies"] == pinned


def test_constraints_name_no_index_and_no_address() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("constraints.txt", "pyproject.toml"))
    for word in ("://", "--index-url", "--extra-index-url", "--find-links"):
        assert word not in text
