"""``plan``, ``check``, ``init``, ``schema`` and ``slices`` as the shell sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tpuctl.cli.app import run
from tpuctl.plan.schema import plan_from_json
from tpuctl.recipe.load import load_recipe
from tpuctl.recipe.schema import RECIPES

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "recipes" / "smoke.toml")


def test_plan_in_text_has_a_line_for_every_part_and_masks_secrets(capsys) -> None:
    assert run(["plan", SMOKE, "--set", "job.secrets.S=hf_test123", "--set", "slice.topology=2x4"]) == 0
    out = capsys.readouterr().out
    heads = [line.split()[0] for line in out.splitlines()]
    parts = ["run", "slice", "mesh", "model", "weights", "data", "train", "optim", "checkpoint", "job", "memory"]
    assert heads[:11] == parts
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


def test_check_of_every_shipped_recipe_is_ok(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        assert run(["check", str(recipe)]) == 0
        assert capsys.readouterr().out == f"{recipe}: ok\n"


def test_plan_of_several_models_tells_of_each(capsys) -> None:
    assert run(["plan", str(ROOT / "recipes" / "serve-models.toml"), "--set", "models.other.slice.topology=2x2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if line.startswith(("slice ", "serves ", "endpoint "))]
    assert [line.split()[:3] for line in said] == [
        ["slice", "one:", "v5e"],
        ["slice", "other:", "v5e"],
        ["serves", "one;", "1,024"],
        ["serves", "other;", "1,024"],
        ["endpoint", "127.0.0.1,", "port"],
    ]
    assert said[3].endswith("0 to 1 replica")


def test_check_in_json_gives_notes(capsys) -> None:
    assert run(["check", SMOKE, "-o", "json", "--set", "slice.topology=2x4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["ok"]) == ("tpuctl.check/1", True)
    assert "chips_per_host = 4" in document["notes"][0]


def test_check_tells_how_many_parameters_are_trained(capsys) -> None:
    assert run(["check", str(ROOT / "recipes" / "lora.toml")]) == 0
    assert "parameters: 139,399,488\ntrained: 4,884,480\n" in capsys.readouterr().err
    assert run(["check", SMOKE, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == document["trained"] > 1_000_000


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("lora.toml", ["mesh.tensor=4", "slice.topology=2x2", 'lora.targets=["q_proj"]']),
        ("serve-quickstart.toml", []),
        ("serve-models.toml", ["models.one.model.preset=none"]),
        ("infer-generate.toml", ["data.uri=builtin:python-help"]),
    ],
)
def test_check_contacts_no_bucket_and_says_what_it_did_not_look_at(recipe, more, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TPUCTL_GCS_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("tpuctl.storage._gcs", lambda: pytest.fail("a bucket was opened"))
    model = "models.one.model" if recipe == "serve-models.toml" else "model"
    keys = [f"{model}.source=gs://models/mine", *more]
    assert run(["check", str(ROOT / "recipes" / recipe), *(word for key in keys for word in ("--set", key))]) == 0
    said = capsys.readouterr().err
    assert "gs://models/mine was not looked at" in said
    assert "parameters:" not in said


@pytest.mark.parametrize("kind", RECIPES)
def test_init_writes_a_recipe_that_checks_and_never_overwrites(capsys, tmp_path, kind) -> None:
    path = tmp_path / "new.toml"
    assert run(["init", kind, str(path)]) == 0
    assert run(["check", str(path)]) == 0
    text = path.read_text()
    assert run(["init", kind, str(path)]) == 2
    assert path.read_text() == text
    assert "never overwrites" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "least"), [("train", 50), ("infer", 10), ("serve", 10), ("custom", 10)])
def test_init_to_stdout_has_every_key_and_each_example_loads(kind, least, capsys, tmp_path) -> None:
    assert run(["init", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = [at for at, line in enumerate(lines) if re.match(r"# \w+ = ", line)]
    assert len(examples) > least
    path = tmp_path / "r.toml"
    for at in examples:
        if lines[at] == '# NAME = "value"':
            continue
        shown = {at, max((above for above in range(at) if re.fullmatch(r"(# )?\[\w+\]", lines[above])), default=at)}
        path.write_text("\n".join(line.removeprefix("# ") if n in shown else line for n, line in enumerate(lines)))
        load_recipe(path)


def test_version_and_init_in_json_are_one_document(capsys, tmp_path) -> None:
    assert run(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "tpuctl.version/1"
    assert run(["init", "custom", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["file"]) == ("tpuctl.init/1", None)
    path = tmp_path / "new.toml"
    path.write_text(document["recipe"])
    assert run(["check", str(path)]) == 0


def test_problems_of_a_recipe_in_json_are_one_object_each(capsys, tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(CUSTOM + "learning_rate = 1\n[trian]\nsteps = 1\n")
    assert run(["check", str(path), "-o", "json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [(p["file"], p["line"], p["key"]) for p in document["problems"]] == [
        (str(path), 8, "job.learning_rate"),
        (str(path), 9, "trian"),
    ]
    assert all(problem["message"] and problem["hint"] for problem in document["problems"])
    path.write_text(CUSTOM.replace('"2x2"', '"2x3"'))
    assert run(["check", str(path), "-o", "json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["line"], problem["key"]) == (4, "slice.topology")


def test_control_characters_of_a_recipe_never_reach_the_terminal(capsys, tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '"\\u001b[31mred" = 1\n' + CUSTOM.replace('entrypoint = "ring:main"', 'command = ["a", "\\u001b[2J"]')
    )
    assert run(["check", str(path)]) == 2
    assert run(["plan", str(path), "--set", "job.command=x"]) == 2
    path.write_text(path.read_text().partition("\n")[2])
    assert run(["plan", str(path)]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\\x1b[31mred" in told.err
    assert "\\x1b[2J" in told.out


def test_recipe_in_a_directory_that_was_deleted_is_said_plainly(capsys, tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for verb in (["check"], ["plan"], ["train", "--dry-run"]):
        assert run([*verb, SMOKE]) == 2
        assert "the current directory has been deleted" in capsys.readouterr().err


def test_init_into_a_missing_folder_says_so(capsys, tmp_path) -> None:
    assert run(["init", "train", str(tmp_path / "no" / "x.toml")]) == 2
    assert "can't be written" in capsys.readouterr().err


CUSTOM = """\
kind = "custom"
[slice]
accelerator = "v6e"
topology = "2x2"
[job]
entrypoint = "ring:main"
working_directory = "."
"""


@pytest.mark.parametrize(
    "words", [["python train.py --name 'a b'"], ["python", "train.py", "--name", "a b"]], ids=["one word", "words"]
)
def test_run_with_a_command_runs_it_in_place_of_the_recipes(capsys, tmp_path, words) -> None:
    path = tmp_path / "r.toml"
    path.write_text(CUSTOM)
    assert run(["run", str(path), "--dry-run", "-o", "json", "--", *words]) == 0
    work = json.loads(capsys.readouterr().out)["work"]
    assert (work["command"], work["function"]) == (["python", "train.py", "--name", "a b"], None)


def test_run_of_a_script_that_is_missing_says_so_before_a_cluster_is_looked_for(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text(CUSTOM)
    assert run(["run", "r.toml", "--cluster", "http://localhost:1", "--", "python", "gone.py"]) == 2
    assert "gone.py: the job refers to it" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "infer", "serve"])
@pytest.mark.parametrize(
    ("kind", "right"), [("train", "train"), ("infer", "infer"), ("serve", "serve"), ("custom", "run")]
)
def test_launch_of_a_recipe_of_another_kind_names_the_right_verb(capsys, tmp_path, verb, kind, right) -> None:
    path = tmp_path / "r.toml"
    assert run(["init", kind, str(path)]) == 0
    code = run([verb, str(path), "--dry-run"])
    assert code == (0 if verb == kind else 2)
    assert (f"tpuctl {right} {path}" in capsys.readouterr().err) == (verb != kind)


@pytest.mark.parametrize("verb", ["train", "infer", "serve"])
def test_launch_of_a_missing_recipe_proposes_one_of_its_kind(capsys, verb) -> None:
    assert run([verb, "nope.toml"]) == 2
    assert f"tpuctl init {verb} nope.toml" in capsys.readouterr().err


def test_run_of_a_command_with_a_training_recipe_says_that_it_needs_a_custom_one(capsys) -> None:
    assert run(["run", SMOKE, "--", "echo"]) == 2
    err = capsys.readouterr().err
    assert "kind 'custom' only" in err
    assert "--set" not in err


def test_schema_takes_the_output_that_it_has_anyway(capsys) -> None:
    assert run(["schema"]) == 0
    plain = capsys.readouterr().out
    assert run(["schema", "-o", "json"]) == 0
    assert capsys.readouterr().out == plain


def test_plan_of_one_of_a_thing_says_so(capsys) -> None:
    assert run(["plan", SMOKE, "--set", "slice.topology=1x1", "--set", "train.steps=1", "--set", "mesh.fsdp=1"]) == 0
    out = capsys.readouterr().out
    assert "1 host × 1 chip (" in out
    assert not re.search(r"\b1 (devices|steps|hosts|chips)\b", out)


@pytest.mark.parametrize(("option", "value"), [("--wait", "soon"), ("--cluster", "ray://head:1")])
def test_dry_run_refuses_an_option_that_would_be_refused_later(capsys, option, value) -> None:
    assert run(["train", SMOKE, "--dry-run", option, value]) == 2
    assert value in capsys.readouterr().err


def test_slices_lists_both_machines_of_2x4(capsys) -> None:
    assert run(["slices", "tpu-v6e-slice", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["slices"]
    assert {row["accelerator"] for row in rows} == {"v6e"}
    assert [(r["hosts"], r["chips_per_host"]) for r in rows if r["topology"] == "2x4"] == [(1, 8), (2, 4)]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("v6e-16", [("4x4", 4)]),
        ("v6e-8", [("2x4", 8), ("2x4", 4)]),
        ("v4-16", [("2x2x2", 4)]),
        ("v6e-2x4", [("2x4", 8), ("2x4", 4)]),
        ("ct6e-standard-8t", [("2x4", 8)]),
    ],
)
def test_slices_of_one_slice_lists_that_one(capsys, name, found) -> None:
    assert run(["slices", name, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["slices"]
    assert [(row["topology"], row["chips_per_host"]) for row in rows] == found


def test_slices_in_a_pipe_is_tab_separated_over_all_generations(capsys) -> None:
    assert run(["slices"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:3] == ["ACCELERATOR", "TOPOLOGY", "CHIPS"]
    assert {row[0] for row in rows[1:]} == {"tpu7x", "v6e", "v5p", "v5e", "v4", "v3", "v2"}


def test_slices_of_an_unknown_generation_names_the_nearest(capsys) -> None:
    assert run(["slices", "v6"]) == 2
    assert "did you mean v6e?" in capsys.readouterr().err
