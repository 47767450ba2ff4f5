from __future__ import annotations

import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tpuctl.entrypoints import corpus
from tpuctl.entrypoints.corpus import HELD_OUT, PYTHON_HELP, PYTHON_STDLIB, CorpusUris, build, dataset_uris
from tpuctl.entrypoints.corpus_help import conversations
from tpuctl.errors import DataError
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import open_corpus


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CorpusUris:
    return build(tmp_path_factory.mktemp("corpus"))


def rows(uri: str | None) -> dict[str, list[str]]:
    """The sections of each file."""
    table = pq.read_table(uri)
    assert table.column_names == ["path", "text"]
    found: dict[str, list[str]] = {}
    for path, text in zip(table["path"].to_pylist(), table["text"].to_pylist(), strict=True):
        found.setdefault(path, []).append(text)
    return found


def characters(files: dict[str, list[str]]) -> int:
    return sum(len(section) for sections in files.values() for section in sections)


def test_build_holds_out_documents_of_its_own(built: CorpusUris) -> None:
    train, held_out = rows(built.train_uri), rows(built.eval_uri)
    assert not set(train) & set(held_out)
    assert not {text for sections in train.values() for text in sections} & {text for (text,) in held_out.values()}
    assert 0.01 < characters(held_out) / characters(train) < 0.08


def test_build_cuts_training_files_into_sections_that_lose_nothing_and_mixes_them(built: CorpusUris) -> None:
    sections = rows(built.train_uri)["argparse.py"]
    source = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_text(encoding="utf-8")
    assert len(sections) > 20
    assert sorted(sections, key=source.index) == [source[at:end] for at, end in places(source, sections)]
    assert sum(map(len, sections)) == len(source)
    paths = pq.read_table(built.train_uri)["path"].to_pylist()
    assert sum(one == other for one, other in pairwise(paths)) < len(paths) / 20


def places(source: str, sections: list[str]) -> list[tuple[int, int]]:
    starts = sorted(source.index(section) for section in sections)
    return list(pairwise([*starts, len(source)]))


def test_build_takes_sources_and_prose_but_no_tests_and_no_packages(built: CorpusUris) -> None:
    paths = {**rows(built.train_uri), **rows(built.eval_uri)}
    assert {"argparse.py", "asyncio/tasks.py", "pydoc_data/topics/assert.txt"} <= set(paths)
    assert not [path for path in paths if {"test", "tests", "site-packages", "encodings"} & set(path.split("/"))]
    assert characters(paths) > 5_000_000


def test_build_twice_gives_the_same_bytes(built: CorpusUris, tmp_path: Path) -> None:
    again = build(tmp_path)
    for first, second in zip((built.train_uri, built.eval_uri), (again.train_uri, again.eval_uri), strict=True):
        assert Path(str(first)).read_bytes() == Path(str(second)).read_bytes()


def test_build_uses_what_is_there(built: CorpusUris, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_documents", lambda stdlib: pytest.fail("built again"))
    assert build(Path(built.train_uri).parent.parent) == built


def test_build_that_loses_the_race_uses_the_winner_s_and_leaves_nothing(
    built: CorpusUris, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_documents", lambda stdlib: _documents_while_another_builds(tmp_path))
    build(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert (folder / "train.parquet").read_text() == "the winner's"


def test_build_that_breaks_leaves_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_documents", lambda stdlib: [("a.py", "too little")])
    with pytest.raises(DataError, match="without the sources"):
        build(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_build_is_a_dataset_that_can_be_opened(built: CorpusUris) -> None:
    assert open_corpus(built.train_uri, columns=Columns.text("text")).num_rows > 400
    assert open_corpus(str(built.eval_uri), columns=Columns.text("text")).num_rows > 10


def test_command_prints_what_goes_into_a_recipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tpuctl.entrypoints.corpus", str(tmp_path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    uris = build(tmp_path)
    assert out == f'[data]\nuri = "{uris.train_uri}"\neval_uri = "{uris.eval_uri}"\n'


def test_dataset_uris_builds_only_what_is_built_in(built: CorpusUris, tmp_path: Path) -> None:
    folder = Path(built.train_uri).parent.parent
    assert dataset_uris("/data", eval_uri="/eval", directory=folder) == CorpusUris(train_uri="/data", eval_uri="/eval")
    assert dataset_uris(PYTHON_STDLIB, eval_uri=None, directory=folder) == built
    assert dataset_uris(PYTHON_STDLIB, eval_uri=PYTHON_STDLIB + HELD_OUT, directory=folder) == built
    own = dataset_uris(PYTHON_STDLIB, eval_uri="/eval", directory=folder)
    assert own == CorpusUris(train_uri=built.train_uri, eval_uri="/eval")
    with pytest.raises(DataError, match="no built-in dataset 'builtin:wikipedia'"):
        dataset_uris("builtin:wikipedia", eval_uri=None, directory=str(tmp_path))


def test_conversations_ask_for_what_is_public_and_documented_and_give_each_answer_once() -> None:
    text = '''
def shown(path, *, deep=False):
    """Walk the tree at path, deeply where it is asked for."""

def _hidden():
    """Nobody asks for what is not public, however long."""

class Tree:
    """A tree of paths, the root of which is no path itself."""

    def grow(self):
        """Too short to tell."""

    async def walk(self, path):
        """Walk the tree at path, deeply where it is asked for."""

    def cut(self, depth: int = 3):
        """Take off all that lies deeper than that.

        Leaves the root."""
'''
    found = list(conversations({"a/__init__.py": text, "_a.py": text, "topic.txt": "no source"}))
    assert [item.name for item in found] == ["a.shown", "a.Tree", "a.Tree.cut"]
    assert found[0].question == "What does a.shown(path, *, deep=False) of Python's standard library do?"
    assert found[1].question == "What is the class a.Tree of Python's standard library?"
    assert found[2].answer == "Take off all that lies deeper than that.\n\nLeaves the root."


def test_build_of_conversations_holds_out_answers_of_its_own(tmp_path: Path) -> None:
    uris = dataset_uris(PYTHON_HELP, eval_uri=PYTHON_HELP + HELD_OUT, directory=str(tmp_path))
    train, held_out = (pq.read_table(uri).to_pylist() for uri in (uris.train_uri, uris.eval_uri))
    assert len(train) > 3000
    assert len(held_out) > 30
    for row in train:
        question, answer = row["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert question["content"] == row["prompt"]
    modules = [{row["name"].split(".")[0] for row in rows if row["name"].count(".") == 1} for rows in (train, held_out)]
    assert not modules[0] & modules[1]


def _documents_while_another_builds(directory: Path) -> list[tuple[str, str]]:
    version = ".".join(map(str, sys.version_info[:3]))
    winner = directory / f"python-stdlib-{version}-{corpus._FORMATS[PYTHON_STDLIB]}"
    winner.mkdir()
    (winner / "train.parquet").write_text("the winner's")
    return [(f"{number}.py", f"{number} " * 10_000) for number in range(200)]
