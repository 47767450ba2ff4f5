"""The control side starts fast: the verbs that contact nothing never import the heavy libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMOKE = str(ROOT / "recipes" / "smoke.toml")
REFERENCE = str(ROOT / "tests" / "nn" / "references" / "llama")
HEAVY = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax",
    "ray",
    "numpy",
    "pydantic",
    "pyarrow",
    "rich",
    "httpx",
    "websockets",
    "google",
    "requests",
    "fsspec",
)

PROBE = f"""
import sys
from tpuctl.cli.app import run
code = run(sys.argv[1:])
print("EXIT", int(code), "HEAVY", [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["version"],
        ["plan", "--help"],
        ["plan", SMOKE],
        ["plan", SMOKE, "-o", "json", "--set", "train.steps=5"],
        ["check", SMOKE],
        ["slices"],
        ["slices", "v6e"],
        ["models", "show", "tiny-5m"],
        ["models", "show", REFERENCE],
        ["schema"],
        ["init", "train"],
        ["tokenizer", "train", "--help"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(str(ROOT), "."),
)
def test_verb_that_contacts_nothing_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
    )
    assert done.stderr.splitlines()[-1] == "EXIT 0 HEAVY []", done.stderr
