"""How the part of batch inference that is no computing scales with hosts: 1, 2 and 4 simulated ones on this machine.

    python -m tests.benchmarks.infer_hosts [--hosts 1 2 4] [--rounds 5]

The model sleeps, as a device computes: without the machine's cores. So a host is the unit of work; what is measured
is dealing, reading, writing and the driver, for all hosts on the cores of one machine. Each runs ``tpuctl infer`` as a
user does; its own last ``rows`` event tells the rows per second, counted from the first part's start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TOPOLOGIES = {1: "2x2x1", 2: "2x2x2", 4: "2x2x4"}
ROWS_PER_HOST, BATCH, PART, SLEEP = 16_384, 64, 512, 0.05
FUNCTION = f"""
import time

def sleep(batch, mask):
    time.sleep({SLEEP})
    return {{"y": batch["id"] * 2.0}}
"""
RECIPE = """
kind = "infer"
[run]
name = "hosts-{hosts}-{number}"
[slice]
accelerator = "v4"
topology = "{topology}"
[data]
uri = "in-{hosts}"
[task]
kind = "custom"
function = "sleeping:sleep"
inputs = ["id"]
batch_rows = {batch}
[output]
uri = "out-{hosts}-{number}"
rows_per_part = {part}
[job]
start_timeout = "180s"
"""


def write_rows(root: Path, hosts: int) -> None:
    """The input of so many hosts: each has the same share, whatever their number."""
    count = ROWS_PER_HOST * hosts
    (root / f"in-{hosts}").mkdir()
    table = pa.table({"id": list(range(count)), "text": [f"row {n}" for n in range(count)]})
    pq.write_table(table, root / f"in-{hosts}" / "0.parquet", row_group_size=4096)


def speed(root: Path, hosts: int, *, number: int) -> float:
    """Rows per second with so many hosts."""
    count = ROWS_PER_HOST * hosts
    recipe = root / f"hosts-{hosts}-{number}.toml"
    recipe.write_text(RECIPE.format(hosts=hosts, number=number, topology=TOPOLOGIES[hosts], batch=BATCH, part=PART))
    lines = tpuctl(root, "infer", str(recipe), "-o", "json").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    last = [item for item in events if item.get("event") == "rows"][-1]
    assert (last["done"], len(last["host_rows"])) == (count, hosts), last
    return float(last["rows_per_second"])


def tpuctl(root: Path, *words: str) -> str:
    """Run the command of this checkout; what it wrote to stdout."""
    environ = {**os.environ, "TPUCTL_STATE_DIR": str(root / "state"), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "tpuctl", *words]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return done.stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, nargs="+", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: dict[int, list[float]] = {hosts: [] for hosts in options.hosts}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "sleeping.py").write_text(FUNCTION)
        for hosts in options.hosts:
            write_rows(root, hosts)
        for number in range(options.rounds):
            for hosts in options.hosts:
                found[hosts].append(speed(root, hosts, number=number))
                tpuctl(root, "cluster", "down", "--all")
                print(f"round {number}, {hosts} hosts: {found[hosts][-1]:,.0f} rows/s", flush=True)
    ideal, first = BATCH / SLEEP, [speed / options.hosts[0] for speed in found[options.hosts[0]]]
    for hosts, speeds in found.items():
        ratios = [speed / hosts / alone for speed, alone in zip(speeds, first, strict=True)]
        print(
            f"{hosts} hosts: {statistics.median(speeds):,.0f} rows/s, "
            f"{statistics.median(speeds) / hosts / ideal:.3f} of what the sleep allows, efficiency "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
