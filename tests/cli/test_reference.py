"""The page of the command line is what the commands say of themselves, and its flags change only on purpose."""

import subprocess
import sys
from pathlib import Path

import typer

from tpuctl.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
WRITE = [sys.executable, "-m", "typer", "tpuctl.cli.app", "utils", "docs", "--name", "tpuctl"]

FLAGS = {
    "bench serve": {
        "--concurrency",
        "--dataset",
        "--model",
        "--output",
        "--output-tokens",
        "--prompt-tokens",
        "--requests",
    },
    "chat": {"--model", "--output", "--system"},
    "check": {"--output", "--set"},
    "cluster down": {"--all", "--name", "--output", "--quiet"},
    "cluster ls": {"--output", "--quiet"},
    "cluster status": {"--cluster", "--output", "--quiet"},
    "cluster up": {"--accelerator", "--cpus", "--name", "--output", "--quiet", "--slices", "--topology"},
    "export": {"--dtype", "--format", "--output", "--quiet"},
    "infer": {"--cluster", "--detach", "--dry-run", "--output", "--quiet", "--set", "--wait"},
    "init": {"--output"},
    "jobs ls": {"--cluster", "--output", "--quiet"},
    "jobs show": {"--cluster", "--output"},
    "logs": {"--cluster", "--follow", "--host", "--output", "--tail"},
    "models show": {"--output"},
    "plan": {"--output", "--set"},
    "run": {"--cluster", "--detach", "--dry-run", "--output", "--quiet", "--set", "--wait"},
    "schema": {"--output"},
    "serve config": {"--set"},
    "serve logs": {"--cluster", "--follow", "--host", "--output", "--tail"},
    "serve ls": {"--cluster", "--output", "--quiet"},
    "serve run": {"--cluster", "--detach", "--dry-run", "--output", "--quiet", "--set", "--wait"},
    "serve status": {"--cluster", "--output"},
    "serve stop": {"--cluster", "--no-wait", "--output", "--quiet", "--wait"},
    "slices": {"--output"},
    "stop": {"--cluster", "--no-wait", "--output", "--quiet", "--wait"},
    "tokenizer train": {"--messages-column", "--output", "--quiet", "--text-column", "--vocab-size"},
    "train": {"--cluster", "--detach", "--dry-run", "--output", "--quiet", "--set", "--wait"},
    "version": {"--output"},
}


def test_cli_page_is_what_the_commands_say() -> None:
    written = subprocess.run(WRITE, capture_output=True, text=True, check=True, cwd=PAGE.parents[1]).stdout
    said = PAGE.read_text(encoding="utf-8")
    assert said.strip() == written.strip(), "write it again: python " + " ".join(WRITE[1:]) + " > docs/cli.md"


def test_cli_flags_are_the_frozen_ones() -> None:
    assert dict(flags_of(typer.main.get_command(app))) == FLAGS


def flags_of(command: object, name: str = "") -> list[tuple[str, set[str]]]:
    children = getattr(command, "commands", None)
    if children is not None:
        return [item for key in sorted(children) for item in flags_of(children[key], f"{name} {key}".strip())]
    options = [option for param in command.params for option in (*param.opts, *param.secondary_opts)]
    return [(name, {option for option in options if option.startswith("--") and option != "--help"})]
