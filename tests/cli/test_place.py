"""Places on the command line: URIs that stay URIs, and words that name nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cli.app import run
from tpuctl.cli.place import place, require_folder
from tpuctl.errors import UsageError


@pytest.mark.parametrize(
    "words",
    [
        ["check", ""],
        ["train", ""],
        ["init", "train", ""],
        ["export", "", "out"],
        ["export", "run", " "],
        ["models", "show", ""],
        ["tokenizer", "train", "t.parquet", ""],
        ["tokenizer", "train", "", "t"],
        ["jobs", "ls", "--cluster", ""],
        ["logs", ""],
        ["cluster", "down", "--name", ""],
        ["chat", ""],
        ["bench", "serve", "http://127.0.0.1:1", "--dataset", ""],
    ],
)
def test_word_that_is_empty_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert "empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["init", "train", "gs://b/a.toml"], ["check", "gs://b/a.toml"], ["export", "gs://", "out"]]
)
def test_uri_that_can_not_be_meant_is_refused_as_it_was_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert "gs://" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["gs://", "gs:///", "gs:///b", "s3://b/a", "gs:b/a", "gs:/b/a"])
def test_place_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        place(text)
    assert text in caught.value.message


def test_place_keeps_a_uri_and_makes_a_path_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place("gs://b/a//c/") == "gs://b/a//c"
    assert place("a/b") == str(tmp_path / "a" / "b")
    assert place("file:///a/b") == "/a/b"


def test_require_folder_leaves_nothing_of_a_folder_that_was_not_there(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
