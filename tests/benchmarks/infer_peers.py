"""Tokens per second of batch inference beside others, on the same prompts, each on all cores, one after the other.

    python -m tests.benchmarks.infer_peers [--hf-python PYTHON] [--vllm-python PYTHON] [--batches 16 32] [--rounds 5]

The first PYTHON has ``ray[data]``, ``torch`` and ``transformers``: ``ray_data_transformers.py`` is what one writes
without tpuctl, ``map_batches`` with one actor that holds the model. The second has vLLM for CPUs: ``vllm_offline.py``.
Each is tried with every batch size first; its best one counts, in rounds in which all run in turns. Of all only the
time from the first row to the last is told, with the model loaded and compiled; that of the peers leaves reading and
writing out. Tokens are those that were made, greedily, to the model's end of text or ``--max-tokens``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.infer_work import Host, arguments, write_prompts
from tests.benchmarks.measuring import report
from tpuctl.builtin_models.fetch import model_folder

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A script, the Python that runs it, and how many rows it is given at a time."""

    script: str
    python: str
    batch: int

    def speed(self, options: argparse.Namespace, root: Path) -> float:
        """Tokens per second of one run."""
        words = [self.python, str(HERE / self.script), str(root / "in" / "0.parquet"), model_folder(options.model)]
        numbers = ["--batch", str(self.batch), "--max-tokens", str(options.max_tokens), "--dtype", options.dtype]
        done = subprocess.run([*words, *numbers], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        said = json.loads(done.stdout.splitlines()[-1])
        speed = float(said["tokens"] / said["seconds"])
        print(f"{self.script}, {self.batch} rows at a time: {said['tokens']} tokens, {speed:.1f} tokens/s", flush=True)
        return speed


def best_peers(options: argparse.Namespace, root: Path) -> list[Peer]:
    """Each peer there is, with the batch size that suits it best."""
    scripts = {"ray_data_transformers.py": options.hf_python, "vllm_offline.py": options.vllm_python}
    return [
        max(
            (Peer(script=script, python=python, batch=batch) for batch in options.batches),
            key=lambda peer: peer.speed(options, root),
        )
        for script, python in scripts.items()
        if python is not None
    ]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--hf-python")
    parser.add_argument("--vllm-python")
    parser.add_argument("--batches", type=int, nargs="*", default=[16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_prompts(root / "in" / "0.parquet", options.rows)
        host, peers = Host.of(options, root), best_peers(options, root)
        told: dict[str, list[tuple[float, float]]] = {peer.script: [] for peer in peers}
        for number in range(options.rounds):
            ran = host.run(root / f"out{number}")
            own = ran.made / ran.seconds
            print(
                f"tpuctl infer, {options.batch_rows} rows at a time: {ran.made} tokens, {own:.1f} tokens/s", flush=True
            )
            for peer in peers:
                told[peer.script].append((own, peer.speed(options, root)))
        for script, measured in told.items():
            report("generate", ("tpuctl infer", script), measured, unit="tokens/s")


if __name__ == "__main__":
    main()
