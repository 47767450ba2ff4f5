"""``tpuctl tokenizer train``, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import BUCKET
from tests.fakes.gcs_process import GcsService
from tpuctl.cli.app import run
from tpuctl.storage import open_storage
from tpuctl.text import load_tokenizer

TEXTS = [f"{n} green bottles, {n * n} of them on the wall" for n in range(300)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"text": TEXTS, "body": [text.upper() for text in TEXTS]}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_tokenizer_train_writes_a_folder_that_a_recipe_can_name(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "tokenizer"
    assert run(["tokenizer", "train", str(data), str(folder), "--vocab-size", "300"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "tokenizer.json")
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = load_tokenizer(str(folder), directory=folder, vocab_size=300)
    assert tokenizer.decode(tokenizer.encode(TEXTS[7]).ids.tolist()) == TEXTS[7]
    assert tokenizer.encode("green bottles").ids.size < len("green bottles") / 2


def test_tokenizer_train_reads_the_column_it_is_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tokenizer", "train", str(data), str(tmp_path / "t"), "--vocab-size", "300", "--text-column", "body"]
    assert run([*arguments, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["ids"], document["rows"]) == ("tpuctl.tokenizer/1", 300, 300)
    assert '"GREEN"' in (tmp_path / "t" / "tokenizer.json").read_text().replace("Ġ", "")


def test_tokenizer_train_of_conversations_reads_what_is_said(tmp_path: Path) -> None:
    rows = [[{"role": "user", "content": text}] for text in TEXTS]
    pq.write_table(pa.table({"chat": rows}), tmp_path / "a.parquet")
    folder = tmp_path / "t"
    arguments = ["tokenizer", "train", str(tmp_path / "a.parquet"), str(folder), "--messages-column", "chat", "-q"]
    assert run([*arguments, "--vocab-size", "400"]) == 0
    assert "role" not in (folder / "tokenizer.json").read_text()


def test_tokenizer_train_never_overwrites_one(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text("mine")
    assert run(["tokenizer", "train", str(data), str(tmp_path)]) == 2
    assert "tokenizer.json exists" in capsys.readouterr().err
    assert (tmp_path / "tokenizer.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.parquet", "t"], 2, "no such file or folder"),
        (["{data}", "t", "--text-column", "words"], 2, "no column 'words'; columns: text"),
        (["builtin:other", "t"], 2, "no built-in dataset"),
        (["{data}", "t", "--vocab-size", "256"], 2, "257"),
        (["s3://b/a", "t"], 2, "no storage for s3://"),
    ],
)
def test_tokenizer_train_that_can_not_be_says_why(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    filled = [argument.format(data=data) for argument in arguments]
    filled[1] = str(tmp_path / filled[1])
    assert run(["tokenizer", "train", *filled]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(("folder", "said"), [("{file}", "is a file"), ("{file}/t", "Not a directory")])
def test_tokenizer_train_into_no_folder_is_refused_before_any_text_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, said: str
) -> None:
    (tmp_path / "f").write_text("")
    assert run(["tokenizer", "train", "nowhere.parquet", folder.format(file=tmp_path / "f")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_tokenizer_train_speaks_of_its_own_flags(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenizer", "train", str(data), str(tmp_path / "t"), "--text-column", "words"]) == 2
    assert "--text-column" in (err := capfd.readouterr().err)
    assert "data." not in err.replace("data.parquet", "")


def test_tokenizer_train_into_a_bucket_uploads_both_files_and_never_overwrites(
    data: Path, tmp_path: Path, gcs: GcsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["tokenizer", "train", str(data), f"gs://{BUCKET}/tokenizers/t", "--vocab-size", "300"]
    assert run(arguments) == 0
    assert list(open_storage("gs://").list(f"gs://{BUCKET}/tokenizers/t")) == [
        f"gs://{BUCKET}/tokenizers/t/tokenizer.json",
        f"gs://{BUCKET}/tokenizers/t/tokenizer_config.json",
    ]
    assert list(tmp_path.iterdir()) == [data]
    assert run(arguments) == 2
