"""One of several processes that follow a leader together, over the tiny decoder.

python -m tests.fakes.follower_host '{"leader": [host, port], "word": …, "address": …, "processes": 2, "process": 0}'
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jax

from tests.fakes.weights_host import start
from tpuctl.engine.frames import connect
from tpuctl.engine.lockstep import Follower


def main(options: dict[str, Any]) -> None:
    jax.distributed.initialize(options["address"], num_processes=options["processes"], process_id=options["process"])
    # Not before: the mesh and all that imports it may ask for devices.
    import jax.numpy as jnp

    from tests.fakes.tiny_engine import ADAPTERS, SIZES, SPEC, adapted_params, tensor_mesh
    from tpuctl.engine.options import EngineOptions
    from tpuctl.engine.runner import Runner, RunnerOptions
    from tpuctl.entrypoints.parity import plain_forward
    from tpuctl.nn.params import param_shardings

    mesh, params = tensor_mesh(tensor=jax.device_count()), adapted_params()
    shardings = param_shardings(SPEC, mesh, lora=ADAPTERS.lora)
    placed = jax.tree.map(
        lambda leaf, where: jax.make_array_from_callback(leaf.shape, where, lambda index: leaf[index]),
        jax.tree.map(jax.device_get, params),
        shardings,
    )
    runner = Runner(
        SPEC,
        placed,
        mesh=mesh,
        engine=EngineOptions(**SIZES, adapters=ADAPTERS),
        options=RunnerOptions(dtype=jnp.float32, kernel="blocks"),
    )
    host, port = options["leader"]
    channel = connect((host, port), number=options["process"], word=options["word"], timeout_seconds=30)
    Follower(channel, speaks=options["process"] == 0).run(runner, plain_forward(SPEC, placed, adapters=ADAPTERS))


def start_followers(leader: tuple[str, int], *, word: str, processes: int) -> list[subprocess.Popen[str]]:
    options = {"leader": leader, "word": word}
    return start(options, processes=processes, devices=1, module="tests.fakes.follower_host")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
