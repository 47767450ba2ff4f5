"""``plan``, ``check``, ``init``, ``schema`` and ``slices`` as the shell sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tpuctl.cli.app import run
from tpuctl.plan.schema import plan_from_json
from tpuctl.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "recipes" / "smoke.toml")


def test_plan_in_text_has_a_line_for_every_part_and_masks_secrets(capsys) -> None:
    assert run(["plan", SMOKE, "--set", "job.secrets.S=hf_test123", "--set", "slice.topology=2x4"]) == 0
    out = capsys.readouterr().out
    heads = [line.split()[0] for line in out.splitlines()]
    assert heads[:11] == [
        "run",
        "slice",
        "mesh",
        "model",
        "weights",
        "data",
        "train",
        "optim",
        "checkpoint",
        "memory",
        "job",
    ]
    assert "note        v6e 2x4 is taken as 1 host × 8 chips" in out
    assert "S=***" in out
    assert "hf_test123" not in out


def test_plan_in_json_is_a_plan_with_masked_secrets(capsys) -> None:
    assert run(["plan", SMOKE, "-o", "json", "--set", "job.env.HF_TOKEN=hf_test123", "--set", "train.steps=7"]) == 0
    captured = capsys.readouterr()
    plan = plan_from_json(json.loads(captured.out))
    assert (plan.train.steps, plan.job.secrets) == (7, {"HF_TOKEN": "***"})
    assert "hf_test123" not in captured.out + captured.err


def test_plan_of_relative_paths_starts_at_the_current_directory(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", SMOKE, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["directory"] == str(tmp_path / "runs" / "smoke")


@pytest.mark.parametrize("verb", ["plan", "check"])
def test_verbs_on_a_bad_recipe_exit_2_with_place_and_remedy(verb, capsys) -> None:
    assert run([verb, SMOKE, "--set", "train.steps=0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        "tpuctl: error: --set: train.steps: expected a whole number of optimizer steps, at least 1, got 0"
        in captured.err
    )
    assert "hint:" in captured.err


def test_check_of_every_shipped_recipe_is_ok(capsys) -> None:
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        assert run(["check", str(recipe)]) == 0
        assert capsys.readouterr().out == f"{recipe}: ok\n"


def test_check_in_json_gives_notes(capsys) -> None:
    assert run(["check", SMOKE, "-o", "json", "--set", "slice.topology=2x4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["ok"]) == ("tpuctl.check/1", True)
    assert "chips_per_host = 4" in document["notes"][0]


def test_init_writes_a_recipe_that_checks_and_never_overwrites(capsys, tmp_path) -> None:
    path = tmp_path / "new.toml"
    assert run(["init", "train", str(path)]) == 0
    assert run(["check", str(path)]) == 0
    text = path.read_text()
    assert run(["init", "train", str(path)]) == 2
    assert path.read_text() == text
    assert "never overwrites" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "least"), [("train", 50), ("infer", 10)])
def test_init_to_stdout_has_every_key_and_each_example_loads(kind, least, capsys, tmp_path) -> None:
    assert run(["init", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = [at for at, line in enumerate(lines) if re.match(r"# \w+ = ", line)]
    assert len(examples) > least
    path = tmp_path / "r.toml"
    for at in examples:
        if lines[at] == '# NAME = "value"':
            continue
        path.write_text("\n".join([*lines[:at], lines[at][2:], *lines[at + 1 :]]))
        load_recipe(path)


@pytest.mark.parametrize("kind", ["serve"])
def test_init_of_a_kind_that_is_not_built_says_so(kind, capsys) -> None:
    assert run(["init", kind]) == 2
    assert f"{kind} recipes are not available yet" in capsys.readouterr().err


def test_init_into_a_missing_folder_says_so(capsys, tmp_path) -> None:
    assert run(["init", "train", str(tmp_path / "no" / "x.toml")]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_slices_lists_both_machines_of_2x4(capsys) -> None:
    assert run(["slices", "tpu-v6e-slice", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["slices"]
    assert {row["accelerator"] for row in rows} == {"v6e"}
    assert [(r["hosts"], r["chips_per_host"]) for r in rows if r["topology"] == "2x4"] == [(1, 8), (2, 4)]


def test_slices_in_a_pipe_is_tab_separated_over_all_generations(capsys) -> None:
    assert run(["slices"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:3] == ["ACCELERATOR", "TOPOLOGY", "CHIPS"]
    assert {row[0] for row in rows[1:]} == {"tpu7x", "v6e", "v5p", "v5e", "v4", "v3", "v2"}


def test_slices_of_an_unknown_generation_names_the_nearest(capsys) -> None:
    assert run(["slices", "v6"]) == 2
    assert "did you mean v6e?" in capsys.readouterr().err
