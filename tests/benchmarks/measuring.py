"""Timing whole commands: wall and CPU seconds of a process and its children, pair by pair, medians."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one run of a command took, in seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], *, environ: Mapping[str, str], cwd: str) -> tuple[Cost, str]:
    """Run a command to its end; its cost and what it wrote to stdout.

    Raises:
        RuntimeError: it failed; with all it said.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=dict(environ), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}\n{out}\n{err}")
    return Cost(wall=time.monotonic() - began, cpu=usage.ru_utime + usage.ru_stime), out


def pairs(one: Callable[[], float], other: Callable[[], float], *, count: int) -> list[tuple[float, float]]:
    """``count`` measurements of each, in turns, after one of each that is not counted."""
    one()
    other()
    return [(one(), other()) for _ in range(count)]


def report(title: str, names: tuple[str, str], measured: list[tuple[float, float]], *, unit: str = "s") -> None:
    """A row of the table: medians, and the median of the ratios pair by pair with its range."""
    ratios = [a / b for a, b in measured]
    first, second = (statistics.median(values) for values in zip(*measured, strict=True))
    print(
        f"{title}: {names[0]} {first:.3f} {unit} · {names[1]} {second:.3f} {unit} · "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(measured)} pairs)"
    )
