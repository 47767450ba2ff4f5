"""A checkpoint of a run as the model folder that is served: exported on the host, for as long as it is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tpuctl.errors import JobFailedError, WeightsError
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.storage import join

_MODULE = "tpuctl.entrypoints.export"


@contextmanager
def exported_checkpoint(plan: ServingPlan, *, tell: Callable[..., None]) -> Iterator[ServingPlan]:
    """The plan with a model folder in place of a checkpoint; it is gone after the block.

    Raises:
        WeightsError: there is no such checkpoint, or it can't be read.
    """
    if plan.checkpoint is None:
        yield plan
        return
    started = time.monotonic()
    run = plan.checkpoint.run
    with tempfile.TemporaryDirectory(prefix="tpuctl-served-") as directory:
        folder = join(directory, "model")
        exported = run_export({"run": run, "step": plan.checkpoint.step, "folder": folder, "dtype": plan.engine.dtype})
        seconds = time.monotonic() - started
        tell("exported", seconds=seconds, detail=f"step {exported['step']} of {run}, as {exported['family']}")
        tokenizer = folder if plan.text.tokenizer == run else plan.text.tokenizer
        yield replace(
            plan,
            checkpoint=None,
            weights=WeightsPlan(uri=folder, family=exported["family"]),
            text=replace(plan.text, tokenizer=tokenizer),
        )


def run_export(request: dict[str, Any]) -> dict[str, Any]:
    """What an export has written, as ``export.Exported`` has it; ``request`` is an ``export.Request``.

    In a process of its own: it must not take the chips, nor the memory that is wanted for them.

    Raises:
        WeightsError: there is no such checkpoint, or it can't be read.
        JobFailedError: the process said nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", _MODULE],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    lines = done.stdout.splitlines()
    if not lines:
        said = done.stderr.strip().splitlines()[-1:]
        raise JobFailedError("; ".join([f"the export of {request['run']} ended with code {done.returncode}", *said]))
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise WeightsError(answer["error"]["message"], hint=answer["error"]["hint"])
    found: dict[str, Any] = answer["exported"]
    return found
