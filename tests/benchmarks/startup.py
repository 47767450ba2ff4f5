"""From the command to the first training step: on a cold simulated slice and on a warm one, with the parts.

    python -m tests.benchmarks.startup [--rounds 5]

Cold: no cluster, no compiled program. Warm: the same recipe in another run directory, on the cluster that is up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("submitted", "driver", "reserved", "joined", "compiled", "first step")


def main() -> None:
    """Print a row for each part, cold and warm: seconds since the command, medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(start(folder, "cold"))
            warm.append(start(folder, "warm"))
            tpuctl(folder, "cluster", "down", "--all").wait()
    print(f"seconds since the command, medians of {rounds} rounds (range of the last)")
    for part in PARTS:
        row = [
            f"{name} {statistics.median(r[part] for r in runs):5.1f}" for name, runs in (("cold", cold), ("warm", warm))
        ]
        print(f"{part:<12}" + "   ".join(row))
    for name, runs in (("cold", cold), ("warm", warm)):
        ends = sorted(r["first step"] for r in runs)
        print(f"{name}: first step after {statistics.median(ends):.1f} s ({ends[0]:.1f} to {ends[-1]:.1f})")


def start(folder: str, name: str) -> dict[str, float]:
    """Run a one-step job and say when each part was done."""
    began = time.time()
    sets = [f"run.directory={folder}/{name}", f"run.name={name}", "train.steps=1", "train.log_every=1"]
    words = [word for item in sets for word in ("--set", item)]
    process = tpuctl(folder, "train", str(ROOT / "recipes" / "smoke.toml"), "-o", "json", *words)
    assert process.stdout is not None
    found = dict(parts(process.stdout, began))
    if process.wait() != 0:
        raise RuntimeError("the run failed")
    return found


def parts(lines: Iterator[str], began: float) -> Iterator[tuple[str, float]]:
    """Each part that an event tells the end of, and when that was. Events carry the time they were made."""
    for line in lines:
        item = json.loads(line)
        name, at = item["event"], item.get("at", 0.0) - began
        if name == "log" and "Runtime env is setting up" in item["text"]:
            yield "submitted", time.time() - began
        elif name == "host":
            yield "joined", at
        elif name == "step" and item["step"] == 1:
            yield "first step", at
        elif name == "phase" and item["phase"] in PARTS:
            yield item["phase"], at


def tpuctl(folder: str, *words: str) -> subprocess.Popen[str]:
    """The command, with clusters and caches of its own."""
    dropped = ("RAY_", "TPUCTL_", "JAX_", "XLA_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    environ |= {"TPUCTL_STATE_DIR": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tpuctl", *words]
    return subprocess.Popen(
        command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


if __name__ == "__main__":
    main()
