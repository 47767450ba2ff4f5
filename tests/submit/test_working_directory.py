"""Which of a user's files travel with a custom job: what its command names does, whatever .gitignore says."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tpuctl.errors import UsageError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import CustomPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.submit.package import job_package
from tpuctl.submit.working_directory import working_files


def plan_of(directory: Path | None, **job: object) -> CustomPlan:
    where = {} if directory is None else {"working_directory": str(directory)}
    values = {
        "kind": "custom",
        "run": {"name": "r"},
        "slice": {"accelerator": "v6e", "topology": "2x2"},
        "job": {**where, **job},
    }
    plan = resolve(build_recipe(Source(file="r.toml", values=values, lines={})), environ={}, cwd="/work")
    assert isinstance(plan, CustomPlan)
    return plan


def write(directory: Path, *names: str, ignored: str = "") -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")
    if ignored:
        (directory / ".gitignore").write_text(ignored)


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --config configs/model.json",
        "python train.py --config=configs/model.json",
        ["python", "train.py", "configs/model.json"],
    ],
)
def test_working_files_that_the_command_names_travel_although_they_are_ignored(
    tmp_path: Path, command: str | list[str]
) -> None:
    write(tmp_path, "train.py", "configs/model.json", "configs/other.json", ".git/objects/x", ignored="*.json\n")
    files = working_files(plan_of(tmp_path, command=command))
    assert files is not None
    assert sorted(files) == [".gitignore", "configs/model.json", "train.py"]


def test_working_files_of_a_function_travel_with_its_module_and_what_is_included(tmp_path: Path) -> None:
    write(tmp_path, "job/main.py", "w.bin", "x.bin", ignored="*.bin\njob/\n")
    files = working_files(plan_of(tmp_path, entrypoint="job.main:run", include=["w.bin"]))
    assert files is not None
    assert sorted(files) == [".gitignore", "job/main.py", "w.bin"]


def test_working_files_that_are_excluded_stay_behind(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "a.ckpt", "data/part.parquet", "src/data.py", ignored="!a.ckpt\n")
    files = working_files(plan_of(tmp_path, command="python train.py", exclude=["*.ckpt", "data/"]))
    assert files is not None
    assert sorted(files) == [".gitignore", "src/data.py", "train.py"]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"command": "python trian.py"}, "trian.py: the job refers to it"),
        ({"command": "python train.py", "include": ["configs/model.json"]}, "configs/model.json: the job refers to it"),
    ],
)
def test_working_files_that_are_missing_are_said_before_anything_is_sent(tmp_path: Path, job, message: str) -> None:
    write(tmp_path, "train.py")
    with pytest.raises(UsageError, match=message):
        working_files(plan_of(tmp_path, **job))


def test_working_files_of_a_script_without_a_directory_says_which_key_to_set() -> None:
    with pytest.raises(UsageError, match=r"train\.py would not be there") as caught:
        working_files(plan_of(None, command="python train.py"))
    assert "working_directory" in (caught.value.hint or "")
    assert working_files(plan_of(None, command="python -m http.server")) is None


def test_job_package_has_the_users_files_beside_ours_and_refuses_to_replace_ours(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    plan = plan_of(tmp_path, command="python train.py")
    names = zipfile.ZipFile(io.BytesIO(job_package(plan, working_files=working_files(plan)).content)).namelist()
    assert {"train.py", "plan.json", "tpuctl/__init__.py"} <= set(names)
    write(tmp_path, "tpuctl/mine.py")
    with pytest.raises(UsageError, match=r"working directory has tpuctl/mine\.py"):
        job_package(plan, working_files=working_files(plan))
    spared = replace(plan, work=replace(plan.work, exclude=("/tpuctl/",)))
    job_package(spared, working_files=working_files(spared))
