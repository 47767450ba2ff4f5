"""A user's function is found, or it is said what is missing; none of it is worth another try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpuctl.entrypoints.custom_host import load_function
from tpuctl.errors import JobFailedError


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("own_job", "own_package", "own_package.main"):
        sys.modules.pop(name, None)


def test_load_function_of_a_module_or_package_is_the_users(modules: Path) -> None:
    (modules / "own_job.py").write_text("def main(plan): return 7\n")
    (modules / "own_package").mkdir()
    (modules / "own_package" / "main.py").write_text("def run(plan): return 8\n")
    assert load_function("own_job:main")(None) == 7
    assert load_function("own_package.main:run")(None) == 8


@pytest.mark.parametrize(
    ("text", "reference", "message"),
    [
        ("", "own_jop:main", "there is no module 'own_jop' on the cluster"),
        ("import no_such_library", "own_job:main", "there is no module 'no_such_library' on the cluster"),
        ("main = 3", "own_job:main", "has no function 'main'"),
    ],
)
def test_load_function_that_is_not_there_says_what_is_missing(
    modules: Path, text: str, reference: str, message: str
) -> None:
    (modules / "own_job.py").write_text(text)
    with pytest.raises(JobFailedError, match=message):
        load_function(reference)
