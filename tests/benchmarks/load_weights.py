"""Loading a model folder of 1 GB on two hosts with four devices each: bytes, seconds, memory.

    python -m tests.benchmarks.load_weights [--transformers PYTHON] [--rounds 5] [--dtype bfloat16]

Beside it, in turns: ``dd`` reading the same files to nowhere, and transformers' ``from_pretrained`` in another
interpreter. The folder is in the page cache for all of them. Seconds are of the loading alone, without imports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.weights_host import answers, start
from tpuctl.modelspec import ModelSpec, num_parameters
from tpuctl.modelspec.huggingface import config_from_spec
from tpuctl.modelspec.layout import parameters
from tpuctl.nn.weights_writing import write_weights

SPEC = ModelSpec(
    name="one-gigabyte",
    vocab_size=32_000,
    hidden_size=2048,
    num_layers=10,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    mlp_size=5632,
    max_positions=4096,
)
STORED_BYTES = 2
PROCESSES, DEVICES = 2, 4
FILE_BYTES = 250_000_000

TRANSFORMERS = """
import json, resource, sys, time
import torch, transformers
transformers.logging.set_verbosity_error(); transformers.utils.logging.disable_progress_bar()
from transformers import LlamaForCausalLM
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[2]))
total = sum(float(p.view(-1)[::4096].float().sum()) for p in model.parameters())  # mapped pages count once touched
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "added": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)}))
"""


def write_folder(folder: Path) -> None:
    """The model, its weights small random numbers."""
    random = np.random.default_rng(0)
    shapes = {path: item.stacked_shape for path, item in parameters(SPEC).items()}

    def read(path: str) -> np.ndarray:
        return random.standard_normal(shapes[path], np.float32) * np.float32(0.02)

    write_weights(SPEC, str(folder), family="llama", dtype="BF16", read=read, limit=FILE_BYTES)
    config = {**config_from_spec(SPEC), "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


def load(folder: Path, dtype: str) -> list[dict[str, Any]]:
    """Ours: what each of the two processes says."""
    return answers(start({"folder": str(folder), "dtype": dtype}, processes=PROCESSES, devices=DEVICES))


def dd(folder: Path) -> float:
    """Seconds of reading all files once."""
    began = time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=8M", "status=none"], check=True)
    return time.perf_counter() - began


def transformers(folder: Path, dtype: str, python: str) -> dict[str, Any]:
    """The peer, in its own interpreter."""
    command = [python, "-c", TRANSFORMERS, str(folder), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(folder: Path, options: argparse.Namespace) -> None:
    """All of them in turns, the first round not counted."""
    ours, copies, peers = [], [], []
    for _ in range(options.rounds + 1):
        copies.append(dd(folder))
        ours.append(load(folder, options.dtype))
        if options.transformers:
            peers.append(transformers(folder, options.dtype, options.transformers))
    hosts = [host for round_ in ours[1:] for host in round_]
    read = max(host["bytes_read"] / (STORED_BYTES * host["needed_elements"]) for host in hosts)
    largest = STORED_BYTES * SPEC.vocab_size * SPEC.hidden_size
    extra = max((host["added_peak_bytes"] - host["held_bytes"]) / largest for host in hosts)
    print(f"{num_parameters(SPEC):,} parameters, {PROCESSES} hosts × {DEVICES} devices, to {options.dtype}")
    print(f"bytes read ÷ bytes needed, the host with most: {read:.3f}")
    print(f"peak memory beyond a host's own shards ÷ largest tensor of {largest / 1e6:.0f} MB: {extra:.2f}")
    _row("ours (slower host)", [max(host["seconds"] for host in round_) for round_ in ours[1:]])
    _row("dd", copies[1:])
    if peers:
        _row("transformers", [peer["seconds"] for peer in peers[1:]])
        print(f"transformers' added peak memory: {max(peer['added'] for peer in peers) / 1e9:.2f} GB")


def _row(name: str, seconds: list[float]) -> None:
    print(f"{name}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", metavar="PYTHON", help="an interpreter that has torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpuctl-weights-") as temporary:
        write_folder(Path(temporary))
        measure(Path(temporary), chosen)
