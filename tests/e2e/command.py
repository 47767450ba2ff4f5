"""Running ``tpuctl`` as a user does: a process, its exit code, what it said on which stream."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def everything(self) -> str:
        """Both streams, for a failing test's message."""
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Command:
    """The ``tpuctl`` command of this checkout, with clusters and tokens of its own."""

    def __init__(self, *, state_dir: Path, cwd: Path, more: Mapping[str, str] | None = None) -> None:
        self.state_dir = state_dir
        self.cwd = cwd
        dropped = ("RAY_", "TPUCTL_", "JAX_", "XLA_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        self._environ = {**kept, "TPUCTL_STATE_DIR": str(state_dir), "PYTHONPATH": str(Path(__file__).parents[2])}
        self._environ.update(more or {})

    def within(self, **more: str) -> Command:
        """The same command with more in its environment."""
        return Command(state_dir=self.state_dir, cwd=self.cwd, more=more)

    def __call__(self, *words: object, timeout_seconds: float = 240) -> Done:
        """Run to the end."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{words} took longer than {timeout_seconds} s\n{out}\n{err}") from None
        return Done(code=process.returncode, out=out, err=err)

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start and leave running."""
        return subprocess.Popen(
            [sys.executable, "-m", "tpuctl", *map(str, words)],
            cwd=self.cwd,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
