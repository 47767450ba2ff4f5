"""What a decoding step moves to and from HBM, beside the least it could: weights, and its sequences' keys and values.

    python -m tests.benchmarks.step_bytes [MODEL …] [--weights int8] [--kv fp8] [--tokens 512 2048]

64 sequences on a v6e, per device, read from the program that libtpu compiles with no TPU (``tests.tpu_aot.hbm`` says
how). The kernel's share cannot be seen in it: it reads blocks of ``KEYS_PER_BLOCK`` tokens of each sequence, the
last one whole. Of the weights an embedding of its own counts with none but the rows looked up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import groupby
from typing import Any

SEQUENCES, KEYS_PER_BLOCK = 64, 1024
MODELS = ("qwen3-4b", "llama3-8b over 8", "llama3.1-70b")


def main() -> None:
    """Compiles and prints, model by model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--weights", choices=["int8"])
    parser.add_argument("--kv", choices=["fp8"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    options = parser.parse_args()
    kinds = [part for key in ("weights", "kv") if (kind := getattr(options, key)) for part in (f"--{key}", kind)]
    for model in options.models:
        report = _compiled(model, *kinds)
        weights = report["weight_bytes"] - report["looked_up_bytes"]
        beside = sum(nbytes for _, nbytes in report["moved"])
        print(f"{model} {' '.join(kinds)}: weights {weights:,}; moved but for pages read {beside:,}")
        for length in options.tokens:
            least = SEQUENCES * length * report["token_bytes"]
            read = SEQUENCES * -(-length // KEYS_PER_BLOCK) * KEYS_PER_BLOCK * report["token_bytes"]
            ratio = (beside + read) / (weights + least)
            print(f"  {length} tokens each: keys and values {least:,}, read {read:,}; all is {ratio:.3f} × the least")
        for of, nbytes in _largest(report["moved"]):
            print(f"    {nbytes:>15,}  {of}")


def _largest(moved: list[tuple[str, int]], count: int = 8) -> list[tuple[str, int]]:
    """What moves most, by what it was made for."""
    named = sorted(((of.removeprefix("jit(run)/"), nbytes) for of, nbytes in moved), key=lambda item: item[0])
    sums = [(of, sum(nbytes for _, nbytes in items)) for of, items in groupby(named, key=lambda item: item[0])]
    return sorted(sums, key=lambda item: -item[1])[:count]


def _compiled(*case: str) -> dict[str, Any]:
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    command = [sys.executable, "-m", "tests.tpu_aot.engine_program", *case]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


if __name__ == "__main__":
    main()
