"""One host of a toy run, as a process of its own: ``python -m tests.fakes.toy_host '{"host": 0, …}'``.

Prints its events as a job does. Ends at once with code 1 on any error, as a worker does that its controller kills.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from tpuctl.errors import TpuctlError


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What the test wants of this process.

    ``stop_at``: has ``reason`` to stop once that step is told. ``stall_before_save``: waits for a line on stdin
    before its first save. ``hang_in_commit``: the background save of that step never ends. ``fail_in_commit``: it
    fails. ``hang_at``: stands still for ever once it has told that step.
    """

    host: int
    hosts: int
    port: int
    directory: str
    plan: dict[str, Any] = field(default_factory=dict)
    length: list[int] | None = None
    stop_at: int | None = None
    reason: str = "REQUESTED"
    stall_before_save: bool = False
    hang_in_commit: int | None = None
    fail_in_commit: int | None = None
    hang_at: int | None = None
    watchdog_seconds: float = 600.0
    checkpoint_timeout_seconds: float = 60.0


def main() -> None:
    host = Host(**json.loads(sys.argv[1]))
    if host.hosts > 1:
        jax.distributed.initialize(f"localhost:{host.port}", host.hosts, host.host, initialization_timeout=60)
    try:
        run(host)
    except (TpuctlError, RuntimeError) as error:
        traceback.print_exc()
        print(f"error {type(error).__name__}: {error}", flush=True)
        sys.stdout.flush()
        os._exit(1)
    if host.hosts > 1:
        jax.distributed.shutdown()


def run(host: Host) -> None:
    from tests.fakes.toy_task import Run, toy_plan
    from tpuctl.runs.events import format_line
    from tpuctl.train import loop
    from tpuctl.train.stopping import StopReason

    run = Run(
        toy_plan(Path(host.directory), **host.plan),
        devices=jax.devices(),
        length=host.length,
        checkpoint_timeout_seconds=host.checkpoint_timeout_seconds,
    )
    events = run.events

    class Printed(list[Any]):
        def append(self, item: Any) -> None:
            events.append(item)
            print(format_line(item), flush=True)

    run.asked_to_stop_at, run.reason_to_stop = host.stop_at, StopReason[host.reason]
    patch(host, run.task.checkpoints)
    import dataclasses

    stop = run.task.stop

    def hang() -> StopReason | None:
        if host.hang_at is not None and run.told("step")[-1:] >= [host.hang_at]:
            threading.Event().wait()
        return stop()

    task = dataclasses.replace(run.task, emit=Printed().append, stop=hang, watchdog_seconds=host.watchdog_seconds)
    result = loop.run(task)
    print(f"result {result.step} {result.stopped}", flush=True)


def patch(host: Host, checkpoints: Any) -> None:
    save = checkpoints.save

    def stalled(*args: Any, **kwargs: Any) -> None:
        print("stalled", flush=True)
        sys.stdin.readline()
        save(*args, **kwargs)

    if host.stall_before_save:
        checkpoints.save = stalled
    bad = host.hang_in_commit or host.fail_in_commit
    if bad is None:
        return
    from orbax.checkpoint._src.path import atomicity

    commit = atomicity.on_commit_callback

    async def faulty(tmpdir: Any, **kwargs: Any) -> None:
        if tmpdir.get_final().name != str(bad):
            return await commit(tmpdir, **kwargs)
        print("in commit", flush=True)
        if host.hang_in_commit is not None:
            threading.Event().wait()
        raise OSError(28, "No space left on device")

    atomicity.on_commit_callback = faulty


if __name__ == "__main__":
    main()
