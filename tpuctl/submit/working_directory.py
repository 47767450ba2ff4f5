"""The user's own files that travel with a job: those of its working directory, those its command or task names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tpuctl.errors import UsageError
from tpuctl.plan.custom_schema import WorkPlan
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.plan.schema import CustomPlan, InferencePlan, Plan
from tpuctl.submit.files import Files, collect


def working_files(plan: Plan) -> Files | None:
    """The files that travel with a plan's job, None for a job that has none of its own.

    Raises:
        UsageError: a file the job refers to is missing, lies outside the directory, or no directory is given.
    """
    if isinstance(plan, InferencePlan):
        return _module_files(plan.task)
    if not isinstance(plan, CustomPlan):
        return None
    work = plan.work
    if work.directory is None:
        _require_no_script(work)
        return None
    directory = Path(work.directory)
    return collect(directory, needed=_needed(work, directory), exclude=work.exclude)


def _module_files(task: TaskPlan) -> Files | None:
    """The module or package of a task's function; None if it doesn't lie in the directory and must be known there."""
    if task.function is None or task.directory is None:
        return None
    directory, name = Path(task.directory), task.function.partition(":")[0].partition(".")[0]
    if (directory / f"{name}.py").is_file():
        return {f"{name}.py": directory / f"{name}.py"}
    if (directory / name).is_dir():
        return {f"{name}/{inner}": path for inner, path in collect(directory / name).items()}
    return None


def _needed(work: WorkPlan, directory: Path) -> Iterator[str]:
    """Relative names of the files a job refers to: they travel whatever an ignore file says."""
    yield from work.include
    if (script := _script(work)) is not None:
        yield script
    for word in work.command:
        # As in --config=configs/model.json.
        for name in {word, word.partition("=")[2]}:
            if _is_below(directory, name):
                yield name
    if work.function is not None:
        module = work.function.partition(":")[0].replace(".", "/") + ".py"
        if _is_below(directory, module):
            yield module


def _is_below(directory: Path, name: str) -> bool:
    if not name or "\n" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return False
    try:
        return (directory / name).is_file()
    except OSError:  # no word that could name a file: too long, for one
        return False


def _script(work: WorkPlan) -> str | None:
    """The script of ``python script.py``, if it is a file of the user's own."""
    if len(work.command) < 2 or not PurePosixPath(work.command[0]).name.startswith("python"):
        return None
    script = work.command[1]
    own = script.endswith(".py") and not script.startswith("-") and not PurePosixPath(script).is_absolute()
    return script if own else None


def _require_no_script(work: WorkPlan) -> None:
    if (script := _script(work)) is not None:
        raise UsageError(
            f"{shlex.join(work.command)}: {script} would not be there, since no files travel with the job",
            hint='set [job] working_directory, e.g. working_directory = "."',
        )
