"""Tokens per second of batch inference beside others, on the same prompts, each on all cores, one after the other.

    python -m tests.benchmarks.infer_peers [--hf-python PYTHON] [--vllm-python PYTHON] [--batches 8 16 32]

The first PYTHON has ``ray[data]``, ``torch`` and ``transformers``: ``ray_data_transformers.py`` is what one writes
without tpuctl, ``map_batches`` with one actor that holds the model, run once for each batch size; the best one counts.
The second has vLLM for CPUs: ``vllm_offline.py``. Of all only the time from the first row to the last is told, with the
model loaded and compiled; that of the peers leaves reading and writing out. Tokens are those that were made, greedily,
to the model's end of text or ``--max-tokens``. ``--ours no`` leaves tpuctl itself out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from tests.benchmarks.infer_work import Host, arguments, write_prompts
from tpuctl.builtin_models.fetch import model_folder

HERE = Path(__file__).parent


def ours(options: argparse.Namespace, root: Path) -> float:
    """Tokens per second of a host of tpuctl's."""
    host = Host.of(options, root)
    ran = host.run(root / "out")
    speed = ran.made / ran.seconds
    print(f"tpuctl infer, {options.batch_rows} rows at a time: {ran.made} tokens, {speed:.1f} tokens/s", flush=True)
    return speed


def peer(options: argparse.Namespace, root: Path, *, python: str, script: str, batch: int) -> float:
    """The same of a peer's script, run by its own Python."""
    words = [python, str(HERE / script), str(root / "in" / "0.parquet"), model_folder(options.model)]
    numbers = ["--batch", str(batch), "--max-tokens", str(options.max_tokens), "--dtype", options.dtype]
    done = subprocess.run([*words, *numbers], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    said = json.loads(done.stdout.splitlines()[-1])
    speed = float(said["tokens"] / said["seconds"])
    print(f"{script}, {batch} rows at a time: {said['tokens']} tokens, {speed:.1f} tokens/s", flush=True)
    return speed


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--hf-python")
    parser.add_argument("--vllm-python")
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--ours", choices=("yes", "no"), default="yes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_prompts(root / "in" / "0.parquet", options.rows)
        own = ours(options, root) if options.ours == "yes" else None
        for python, script in (
            (options.hf_python, "ray_data_transformers.py"),
            (options.vllm_python, "vllm_offline.py"),
        ):
            if python is None:
                continue
            best = max(peer(options, root, python=python, script=script, batch=batch) for batch in options.batches)
            if own is not None:
                print(f"ratio to {script} at its best: {own / best:.2f}", flush=True)


if __name__ == "__main__":
    main()
