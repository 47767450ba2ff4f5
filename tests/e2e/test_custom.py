"""A job of the user's own, as a user types it: a function on the joined slice, and a command with its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import Command

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, sys
print("arguments", json.dumps(sys.argv[1:]))
print("file", open("configs/model.json").read())
print("token", "there" if os.environ["HF_TOKEN"] == "hf_test123" else "wrong")
print("process", os.environ["JAX_PROCESS_ID"], "of", os.environ["JAX_NUM_PROCESSES"])
print("said", os.environ["HF_TOKEN"])
sys.exit(int(os.environ["CODE"]))
"""
RECIPE = """
kind = "custom"
[run]
name = "own-command"
[slice]
accelerator = "v6e"
topology = "2x2"
[job]
command = ["python", "job.py", "a b", "`id` $HOME it's\\n", "--config=configs/model.json"]
working_directory = "own"
[job.env]
CODE = "3"
[job.secrets]
HF_TOKEN = "hf_test123"
"""


@pytest.mark.slow
def test_run_shipped_recipe_calls_the_function_on_the_joined_slice(tpuctl: Command, tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "custom.toml").read_text().replace("recipes/custom", str(ROOT / "recipes" / "custom"))
    (tmp_path / "custom.toml").write_text(text)
    smaller = ("--set", "slice.topology=2x2", "--set", "slice.chips_per_host=unset")
    done = tpuctl("run", tmp_path / "custom.toml", *smaller, "--set", f"run.directory={tmp_path / 'run'}")
    assert done.code == 0, done.everything
    assert "joined  1 of 1 host, 4 devices each (simulated: CPU)" in done.out
    assert "host 0 of 1: the devices add up to 6, expected 6" in done.out


@pytest.mark.slow
def test_run_command_gets_its_words_files_and_secrets_and_its_exit_code_decides(
    tpuctl: Command, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    (own / "configs").mkdir(parents=True)
    (own / "job.py").write_text(SCRIPT)
    (own / "configs" / "model.json").write_text("{}")
    (own / ".gitignore").write_text("*.json\n")
    recipe = tmp_path / "own-command.toml"
    recipe.write_text(RECIPE.replace('"own"', f'"{own}"'))
    done = tpuctl("run", recipe, "--set", f"run.directory={tmp_path / 'run'}")
    assert r'arguments ["a b", "`id` $HOME it' in done.out
    for line in ("file {}", "token there", "process 0 of 1", "said ***"):
        assert line in done.out, done.everything
    assert done.code == 1, done.everything
    assert "python: exit code 3" in done.err
