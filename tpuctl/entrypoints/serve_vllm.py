"""The entrypoint of a recipe that is handed over to vLLM: deploys the plan's config through Ray Serve and watches it.

What the config imports runs here, in an image that has vLLM; nothing of it is known to this file but that it makes an
application of Ray Serve. Ray Serve LLM waits for ever for a slice that does not come, so the waiting is bounded here.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus

from tpuctl import __version__
from tpuctl.entrypoints.attempt import HeldRun
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.emit import emit, emit_event
from tpuctl.entrypoints.serve_host import ready_event
from tpuctl.entrypoints.stopping import stop_watch
from tpuctl.errors import CapacityError, JobFailedError
from tpuctl.plan.schema import ServingPlan
from tpuctl.runs.record import EventsWriter

_POLL_SECONDS = 1.0
# Beyond the wait for the slice: vLLM loads and compiles.
_START_MARGIN_SECONDS = 1800.0


def main(plan: ServingPlan) -> int:
    """Serve until told to stop; the job's exit code.

    Raises:
        TpuctlError: The endpoint failed for a reason we can name.
    """
    identity = begin(plan)
    with HeldRun(plan, identity, version=__version__) as run, bounded(plan, identity):
        with stop_watch(identity.submission_id) as asked:
            serve_handover(plan, stop=asked)
        emit("stopped", reason="requested")
        run.ended("stopped")
    return 0


def serve_handover(plan: ServingPlan, *, stop: Callable[[], bool]) -> None:
    """Deploy the config of a plan and keep it until told to stop.

    Raises:
        JobFailedError: What it imports is not there, or Ray Serve has given up.
        CapacityError: It was not ready in time.
    """
    assert plan.handover is not None, "the plan's entrypoint says so"
    config = json.loads(plan.handover)
    serve.start(http_options=HTTPOptions(**config["http_options"]))
    apps = config["applications"]
    try:
        targets = [_target(app) for app in apps]
        serve.run_many(targets, wait_for_applications_running=False)
        with closing(EventsWriter(plan.run.directory)) as history:
            _watch(plan, [app["name"] for app in apps], stop, history)
    finally:
        for app in apps:
            serve.delete(app["name"], _blocking=False)


def _target(app: dict[str, Any]) -> serve.RunTarget:
    module, _, name = app["import_path"].partition(":")
    try:
        build = getattr(importlib.import_module(module), name)
    except ImportError as error:
        hint = 'serve.engine = "vllm" needs an image that has vLLM for TPU, on the head node too'
        raise JobFailedError(f"{module} can't be imported: {error}", hint=hint) from error
    return serve.RunTarget(target=build(app["args"]), name=app["name"], route_prefix=app["route_prefix"])


def _watch(plan: ServingPlan, names: list[str], stop: Callable[[], bool], history: EventsWriter) -> None:
    began, ready = time.monotonic(), False
    seconds = plan.job.start_timeout_seconds + _START_MARGIN_SECONDS
    while not stop():
        apps = serve.status().applications
        for name in names:
            if apps[name].status is ApplicationStatus.DEPLOY_FAILED:
                raise JobFailedError(f"Ray Serve has given up: {_told(apps[name])}")
        running = all(apps[name].status is ApplicationStatus.RUNNING for name in names)
        if running and not ready:
            ready = True
            item = ready_event([plan], port=plan.endpoint.port, seconds=time.monotonic() - began)
            emit_event(item)
            history.append([item])
        if not ready and time.monotonic() - began > seconds:
            told = "; ".join(_told(apps[name]) for name in names)
            raise CapacityError(f"not ready after {seconds:.0f} s: {told}", hint="[job] start_timeout waits longer")
        time.sleep(_POLL_SECONDS)


def _told(app: Any) -> str:
    return "; ".join(deployment.message for deployment in app.deployments.values()) or str(app.message)
