"""Plan a recipe of serving and serve it in this process, without Ray: ``-m tests.serve.serve_here RECIPE KEY=VALUE…``.

Says the endpoint's address on stdout once it is ready, and serves until it is terminated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import plan_to_json
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]


@contextmanager
def served_here(recipe: str, *overrides: str, cwd: Path) -> Iterator[str]:
    """The address of a recipe of this house, served by another process for the length of the block."""
    words = [sys.executable, "-m", "tests.serve.serve_here", str(ROOT / "recipes" / recipe), "serve.port=0", *overrides]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TPUCTL_SIMULATED": "1"}
    process = subprocess.Popen(words, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, f"{recipe} ended with {process.wait(10)}"
        yield url
    finally:
        process.terminate()
        process.wait(60)


def main(recipe: str, *overrides: str) -> None:
    """Serve until SIGTERM."""
    loaded = load_recipe(Path(recipe), overrides=overrides)
    source = read_source(loaded, environ=os.environ, cwd=Path.cwd())
    plan = resolve(loaded, environ=os.environ, cwd=Path.cwd(), source=source)
    # What the tests' own processes have is another number of devices.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={plan.slice.devices_per_host}"
    from tpuctl.entrypoints.serve_host import ServeHost  # imports jax

    os.makedirs(plan.run.directory, exist_ok=True)
    host = ServeHost(plan_to_json(plan))

    def tell() -> None:
        while not (ready := [told for told in host.news(since=0).events if told["event"] == "ready"]):
            time.sleep(0.1)
        sys.stdout.write(f"{ready[0]['url']}\n")
        sys.stdout.flush()

    threading.Thread(target=tell, daemon=True).start()
    host.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
