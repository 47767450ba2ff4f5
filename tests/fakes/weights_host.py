"""One of several processes that load a model folder together: prints what it read, held and took, as JSON.

python -m tests.fakes.weights_host '{"folder": …, "address": …, "processes": 2, "process": 0, "dtype": "float32"}'
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[2]


def main(options: dict[str, Any]) -> None:
    jax.distributed.initialize(options["address"], num_processes=options["processes"], process_id=options["process"])
    # Not before: the mesh and all that imports it may ask for devices.
    from tpuctl.mesh import create_mesh
    from tpuctl.model_folder import read_config
    from tpuctl.modelspec.huggingface import spec_from_config
    from tpuctl.nn.params import param_shardings
    from tpuctl.nn.weights import load_params
    from tpuctl.plan.schema import MeshPlan

    config = read_config(options["folder"])
    spec = spec_from_config(config)
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=jax.device_count(), expert=1, tensor=1))
    shardings = param_shardings(spec, mesh)
    dtype = jnp.dtype(options["dtype"])
    with PeakMemory() as memory:
        began = time.perf_counter()
        loaded = load_params(spec, options["folder"], family=config["model_type"], shardings=shardings, dtype=dtype)
        jax.block_until_ready(loaded.params)
        seconds = time.perf_counter() - began
    needed, held = own_elements(loaded.params)
    print(
        json.dumps(
            {
                "bytes_read": loaded.bytes_read,
                "needed_elements": needed,
                "held_bytes": held * dtype.itemsize,
                "seconds": seconds,
                "added_peak_bytes": memory.added,
                "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "digests": digests(loaded.params) if options.get("digests") else {},
            }
        ),
        flush=True,
    )


def own_elements(params: Any) -> tuple[int, int]:
    """Elements that this process' devices need, each counted once, and those that they hold, copies included."""
    needed = held = 0
    for leaf in jax.tree.leaves(params):
        sizes = {str(shard.index): shard.data.size for shard in leaf.addressable_shards}
        needed += sum(sizes.values())
        held += sum(shard.data.size for shard in leaf.addressable_shards)
    return needed, held


def start(
    options: dict[str, Any],
    *,
    processes: int,
    devices: int,
    stderr: bool = False,
    module: str = "tests.fakes.weights_host",
) -> list[subprocess.Popen[str]]:
    """The processes, each with so many virtual CPU devices; with ``stderr`` what they say there is kept."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    asked = [options | {"address": address, "processes": processes, "process": i} for i in range(processes)]
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(one)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if stderr else None,
            text=True,
        )
        for one in asked
    ]


def answers(started: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """What each process says, once all have ended."""
    said = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return [json.loads(text.splitlines()[-1]) for text in said]


def digests(params: Any) -> dict[str, str]:
    """Of each local shard, by leaf and place."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        for shard in leaf.addressable_shards:
            name = f"{jax.tree_util.keystr(path, simple=True, separator='/')}{shard.index}"
            found[name] = hashlib.sha256(np.asarray(shard.data).tobytes()).hexdigest()
    return found


class PeakMemory:
    """The most memory of its own the process has within a ``with`` block beyond what it had before, sampled."""

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def added(self) -> int:
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._peak = max(self._peak, resident())


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
