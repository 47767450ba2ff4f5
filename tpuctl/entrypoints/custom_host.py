"""What each host does in a custom job: run the user's command, or call the user's function."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tpuctl.entrypoints.emit import emit, tell_note
from tpuctl.entrypoints.seats import is_simulated
from tpuctl.entrypoints.stopping import StopWatch
from tpuctl.errors import JobFailedError
from tpuctl.plan.schema import CustomPlan, plan_from_json

_POLL_SECONDS = 0.5
_watch: StopWatch | None = None


class CommandFailedError(Exception):
    """The command ended with another exit code than 0. Restarted as often as the plan allows."""


def custom_host(config: dict[str, Any]) -> bool:
    """Run this host's part to its end; True if that was asked for.

    Raises:
        CommandFailedError: The command failed.
        JobFailedError: There is no such program or function.
    """
    global _watch
    plan = plan_from_json(config["plan"])
    assert isinstance(plan, CustomPlan), "the driver of a custom job sends one"
    os.environ.update(plan.job.env | plan.job.secrets)
    os.environ["TPUCTL_RUN_DIRECTORY"] = plan.run.directory
    if plan.job.compile_cache is not None:
        # A command has a JAX of its own.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = plan.job.compile_cache
    _watch = StopWatch(config["job"])
    try:
        if plan.work.function is not None:
            _call(plan.work.function, plan)
        else:
            _execute(plan, _watch)
        return _watch.asked()
    finally:
        _watch.close()


def stop_requested() -> bool:
    """Whether the job was asked to stop, for a user's function to look at between its steps."""
    return _watch is not None and _watch.asked()


def load_function(reference: str) -> Callable[[CustomPlan], Any]:
    """The function that ``module:name`` means.

    Raises:
        JobFailedError: There is no such module, or no such function in it.
    """
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise JobFailedError(
            f"{reference}: there is no module {error.name!r} on the cluster",
            hint="do its files lie in [job] working_directory? packages are named in [job] pip",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise JobFailedError(f"{reference}: {module.__file__} has no function {name!r}")
    found: Callable[[CustomPlan], Any] = function
    return found


def _call(reference: str, plan: CustomPlan) -> None:
    # Not at the top of this file: the driver imports it too, and must not touch the chips.
    import jax

    from tpuctl.entrypoints.programs import keep_programs
    from tpuctl.train.devices import verify_devices

    simulated = is_simulated()
    verify_devices(plan, simulated=simulated)
    keep_programs(plan, tell=tell_note)
    emit(
        "host",
        host=jax.process_index(),
        hosts=jax.process_count(),
        devices=jax.local_device_count(),
        platform=jax.default_backend(),
        simulated=simulated,
    )
    function = load_function(reference)
    try:
        function(plan)
    except Exception:
        # Ray keeps the words and drops the place.
        traceback.print_exc()
        raise


def _execute(plan: CustomPlan, watch: StopWatch) -> None:
    """Run the command behind a pipe that ends it when this worker lets go, of its own will or because it died."""
    grace = plan.job.stop_grace_seconds
    leash = [sys.executable, "-m", "tpuctl.entrypoints.leash", str(grace), *plan.work.command]
    emit("phase", phase="running", detail=plan.work.command[0])
    with subprocess.Popen(leash, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        while (code := _ended(process)) is None:
            if watch.asked() and not process.stdin.closed:
                process.stdin.close()
    if code and not watch.asked():
        raise CommandFailedError(f"{plan.work.command[0]}: {_meaning(code)}")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _meaning(code: int) -> str:
    if code == 127:
        return "no such program on the cluster (exit code 127)"
    return f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
