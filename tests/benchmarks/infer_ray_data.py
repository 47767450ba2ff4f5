"""Tokens per second of batch inference beside plain Ray Data with transformers, on the same prompts, both on all cores.

    python -m tests.benchmarks.infer_ray_data --peer-python PYTHON [--batches 8 16 32] [--dtype float32]

PYTHON has ``ray[data]``, ``torch`` and ``transformers``. The peer is ``ray_data_transformers.py``: ``map_batches`` with
one actor that holds the model, run once for each batch size; the best one counts. Of both only the time from the first
row to the last is told, with the model loaded and, here, compiled; the peer's leaves reading and writing out. Tokens
are those that were made, greedily, to the model's end of text or ``--max-tokens``.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.benchmarks.infer_work import Host, arguments, write_prompts
from tpuctl.builtin_models.fetch import model_folder

PEER = Path(__file__).with_name("ray_data_transformers.py")


def peer(options, root: Path, *, batch: int) -> float:  # type: ignore[no-untyped-def]
    """The peer's tokens per second with a batch size."""
    words = [options.peer_python, str(PEER), str(root / "in"), model_folder(options.model)]
    numbers = ["--batch", str(batch), "--max-tokens", str(options.max_tokens), "--dtype", options.dtype]
    done = subprocess.run([*words, *numbers], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    said = json.loads(done.stdout.splitlines()[-1])
    speed = float(said["tokens"] / said["seconds"])
    print(f"Ray Data + transformers, batch {batch}: {said['tokens']} tokens, {speed:.1f} tokens/s", flush=True)
    return speed


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 16, 32])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_prompts(root / "in" / "0.parquet", options.rows)
        host = Host.of(options, root)
        ran = host.run(root / "out")
        ours = ran.made / ran.seconds
        print(f"tpuctl infer: {ran.made} tokens, {ours:.1f} tokens/s, {ran.rows / ran.seconds:.2f} rows/s", flush=True)
        best = max((peer(options, root, batch=batch) for batch in options.batches), default=None)
        if best is not None:
            print(f"ratio to the best: {ours / best:.2f}")


if __name__ == "__main__":
    main()
