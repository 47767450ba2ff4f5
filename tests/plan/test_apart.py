"""Nothing is written over what is read, nor into folders that hold more than a job's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.conftest import GOOD
from tpuctl.errors import RecipeError
from tpuctl.plan.apart import check_on_disk
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import Plan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source

EMBED: dict[str, Any] = {
    "kind": "infer",
    "run": {"name": "r"},
    "slice": {"accelerator": "v6e", "topology": "1x1"},
    "data": {"uri": "data/in"},
    "model": {"source": "models/tiny"},
    "task": {"kind": "embed"},
    "output": {"uri": "out"},
}
TRAIN = GOOD | {"run": {"name": "r"}}


def planned(values: dict[str, Any], *overrides: str, cwd: str = "/work") -> Plan:
    recipe = build_recipe(Source(file="r.toml", values=values, lines={}), overrides=overrides)
    plan = resolve(recipe, environ={"HOME": "/home/me"}, cwd=cwd)
    check_on_disk(plan, home="/home/me", origin=recipe.origin)
    return plan


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("output.uri=/", "holds more than this job's files"),
        ("output.uri=file:///", "holds more than this job's files"),
        ("output.uri=~", "holds more than this job's files"),
        ("output.uri=/home", "holds more than this job's files"),
        ("output.uri=data/in", "overlaps with the input"),
        ("output.uri=data", "overlaps with the input"),
        ("output.uri=data/in/out", "overlaps with the input"),
        ("output.uri=data/../data/in/", "overlaps with the input"),
        ("output.uri=models/tiny", "overlaps with the model"),
        ("output.uri=models", "overlaps with the model"),
        ("output.uri=models/tiny/out", "overlaps with the model"),
        ("output.uri=runs/r", "holds the run directory"),
        ("output.uri=runs", "holds the run directory"),
        ("run.directory=out", "holds the run directory"),
        ("run.directory=out/run", "holds the run directory"),
    ],
)
def test_output_too_near_to_what_must_stay_is_refused(override: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        planned(EMBED, override, "output.mode=overwrite")
    assert caught.value.where.key == "output.uri"


@pytest.mark.parametrize("values", [EMBED, TRAIN])
@pytest.mark.parametrize("directory", ["/", "~", "/home", "data", "."])
def test_run_directory_that_encloses_others_files_is_refused(values: dict[str, Any], directory: str) -> None:
    with pytest.raises(RecipeError, match=r"holds more than|overlaps with") as caught:
        planned(values, f"run.directory={directory}")
    assert caught.value.where.key == "run.directory"


def test_neighbours_and_output_inside_the_run_are_apart() -> None:
    assert planned(EMBED, "output.uri=data/in-vectors")
    assert planned(EMBED, "output.uri=runs/r/out")
    assert planned(EMBED, "data.uri=gs://bucket/in", "output.uri=gs://bucket/in2", "run.directory=gs://bucket/runs/r")
    assert planned(TRAIN, "run.directory=data/run")


def test_buckets_are_held_apart_like_folders() -> None:
    with pytest.raises(RecipeError, match="overlaps with the input"):
        planned(EMBED, "data.uri=gs://bucket/in", "output.uri=gs://bucket/in/out")


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "models")
    with pytest.raises(RecipeError, match="overlaps with the model"):
        planned(EMBED, "output.uri=elsewhere", cwd=str(tmp_path))


@pytest.mark.parametrize("key", ["run.directory", "output.uri"])
def test_file_in_the_way_of_a_folder_is_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("")
    for place in ("/dev/null", "note.txt", "note.txt/run"):
        with pytest.raises(RecipeError, match="is no directory") as caught:
            planned(EMBED, f"{key}={place}", cwd=str(tmp_path))
        assert caught.value.where.key == key
