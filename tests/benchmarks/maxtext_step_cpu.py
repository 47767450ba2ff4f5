"""The job of ``train_step_cpu`` in MaxText; run by it, with the interpreter of an environment that has MaxText.

Prints one line of JSON. MaxText has no step to call from outside: its own loop runs, each iteration bracketed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
import tempfile
import threading
from pathlib import Path

import jax
import maxtext
from maxtext.trainers.pre_train import train

sys.path.insert(0, str(Path(__file__).parent))
from train_step_cpu import DEVICES, LENGTH, ROWS, VOCAB, WARM_UP, timed_steps

SETTINGS = {
    "run_name": "s",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "hardware": "cpu",
    "base_emb_dim": 256,
    "base_num_decoder_layers": 4,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 64,
    "base_mlp_dim": 1024,
    "vocab_size": VOCAB,
    "max_target_length": LENGTH,
    "per_device_batch_size": ROWS / DEVICES,
    "dtype": "float32",
    "weight_dtype": "float32",
    "remat_policy": "full",
    "enable_goodput_recording": "false",
    "monitor_goodput": "false",
    "skip_jax_distributed_system": "true",
    "enable_tensorboard": "false",
    "jax_cache_dir": "",
}


def main() -> None:
    """Trains a few steps and prints what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    steps = parser.parse_args().steps
    jax.config.update("jax_enable_compilation_cache", False)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        measured = _measure(steps, folder)
    print(json.dumps(measured))


def _measure(steps: int, folder: str) -> dict[str, float]:
    """Lets MaxText's loop run in a thread, one iteration for each call of the timed step."""
    permits: queue.Queue[bool] = queue.Queue()
    done: queue.Queue[bool] = queue.Queue()
    inner = train.training_loop_iteration

    def bracketed(device_state: object, *rest: object) -> object:
        permits.get()
        result = inner(device_state, *rest)
        jax.block_until_ready(device_state["state"])  # type: ignore[index]
        done.put(True)
        return result

    train.training_loop_iteration = bracketed
    config = Path(maxtext.__file__).parent / "configs" / "base.yml"
    settings = SETTINGS | {"steps": steps + WARM_UP, "base_output_directory": folder}
    arguments = ["maxtext", str(config), *(f"{key}={value}" for key, value in settings.items())]
    loop = threading.Thread(target=train.main, args=(arguments,), daemon=True)
    loop.start()

    def step() -> None:
        permits.put(True)
        while True:
            with contextlib.suppress(queue.Empty):
                done.get(timeout=1)
                return
            if not loop.is_alive():
                sys.exit("MaxText's loop ended early")

    measured = timed_steps(step, steps=steps)
    loop.join()
    return measured


if __name__ == "__main__":
    main()
