"""What the data path costs a training step: in this process, and through Ray Data on a local node.

    python -m tests.benchmarks.data_feed [--step-seconds 0.3] [--readers 1]

For each feed: seconds to the first batch, steps per second when nothing else is done, and data stall, the part of a
step spent waiting for its batch, when each step computes for a while as the device would.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray

from tpuctl.entrypoints.corpus import build
from tpuctl.entrypoints.ray_feed import RayFeed
from tpuctl.text.place import TokenizerRef
from tpuctl.train.batch import BatchFeed
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.feed import LocalFeed
from tpuctl.train.data.packing import start_cursor
from tpuctl.train.data.stream import Stream, prepare_tokenizer

ROWS, SEQUENCE_LENGTH, VOCABULARY = range(16), 256, 2048
FREE_STEPS, PACED_STEPS = 100, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What was measured of one feed."""

    first_seconds: float
    steps_per_second: float
    stall_percent: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-seconds", type=float, default=0.3, help="how long a step computes")
    parser.add_argument("--readers", type=int, default=1, help="Ray Datasets side by side")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="df-", dir="/tmp"))
    stream = quickstart_stream(scratch)
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=150 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(scratch / "r"),
    )
    feeds: dict[str, Callable[[], BatchFeed]] = {
        "in this process": lambda: LocalFeed(stream, held_out=None, rows=ROWS),
        f"Ray Data, {arguments.readers} readers": lambda: RayFeed(
            stream, held_out=None, rows=ROWS, readers=arguments.readers
        ),
    }
    print(f"\n{'':22} {'first batch':>12} {'steps/s':>9} {'data stall':>11}")
    for name, make in feeds.items():
        cost = measure(make(), step_seconds=arguments.step_seconds)
        print(f"{name:22} {cost.first_seconds:10.2f} s {cost.steps_per_second:9.0f} {cost.stall_percent:9.2f} %")
    ray.shutdown()
    shutil.rmtree(scratch)


def quickstart_stream(scratch: Path) -> Stream:
    """The stream of the quickstart recipe: 16 rows of 256 tokens of a BPE of 2048 ids."""
    corpus = open_corpus(build(scratch).train_uri, columns=Columns.text("text"))
    tokenizer = TokenizerRef(name=f"bpe:{VOCABULARY}", directory=str(scratch), vocab_size=VOCABULARY)
    prepare_tokenizer(tokenizer, corpus=corpus)
    return Stream(
        corpus=corpus,
        tokenizer=tokenizer,
        lanes=len(ROWS),
        sequence_length=SEQUENCE_LENGTH,
        packing=True,
        epochs=0,
        shuffle=True,
        seed=0,
    )


def measure(feed: BatchFeed, *, step_seconds: float) -> Cost:
    """First batch, free running, then paced."""
    start = time.perf_counter()
    batches = feed.train(start_cursor(len(ROWS)))
    next(batches)
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(FREE_STEPS):
        next(batches)
    free = time.perf_counter() - start
    waited = 0.0
    for _ in range(PACED_STEPS):
        time.sleep(step_seconds)
        start = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - start
    stall = 100 * waited / (waited + PACED_STEPS * step_seconds)
    return Cost(first_seconds=first, steps_per_second=FREE_STEPS / free, stall_percent=stall)


if __name__ == "__main__":
    main()
