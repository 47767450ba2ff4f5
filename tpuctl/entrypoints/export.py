"""Export: a checkpoint of a run into a model folder in Hugging Face's form. A process of its own, on one machine.

    python -m tpuctl.entrypoints.export < request.json

Talks on stderr; the last line of stdout is the result, or the error, as JSON. Runs on the CPU whatever the machine
has, and holds one leaf of the parameters at a time.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuctl.entrypoints.export_files import model_config, write_config, write_tokenizer
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.nn.weights_writing import write_weights
from tpuctl.plan.decode import PlanFormatError
from tpuctl.plan.schema import TrainingPlan, plan_from_json
from tpuctl.runs.record import read_record
from tpuctl.storage import join, open_storage
from tpuctl.train.checkpoint_arrays import CheckpointArrays
from tpuctl.train.provenance import check_model, provenance_of

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to export and where to: ``run`` is a run directory, ``step`` None its newest checkpoint."""

    run: str
    step: int | None
    folder: str
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written."""

    folder: str
    run: str
    step: int
    family: str
    dtype: str
    files: tuple[str, ...]
    tensors: int
    num_bytes: int


def export(request: Request) -> Exported:
    """Write the folder: weights first, ``config.json``, which makes a model of it, last.

    Raises:
        UsageError: no such run, or a folder that holds something.
        CheckpointError: no such checkpoint, or it can't be read.
        StorageError: the folder can't be written to.
    """
    plan = _plan(request.run)
    if next(iter(open_storage(request.folder).list(request.folder)), None) is not None:
        raise UsageError(f"{request.folder} is not empty", hint="export into a new folder")
    arrays = CheckpointArrays(join(request.run, "checkpoints"), step=request.step)
    check_model(arrays.written, provenance_of(plan), path=arrays.path)
    config = model_config(plan, dtype=request.dtype)
    written = write_weights(
        plan.model,
        request.folder,
        family=config["model_type"],
        dtype=DTYPES[request.dtype],
        read=lambda path: _told(arrays, path),
    )
    write_tokenizer(plan, request.folder)
    write_config(plan, request.folder, config)
    return Exported(
        folder=request.folder,
        run=request.run,
        step=arrays.step,
        family=config["model_type"],
        dtype=request.dtype,
        **dataclasses.asdict(written),
    )


def main() -> int:
    """Serve one request of ``tpuctl export``; the exit code."""
    try:
        exported = export(Request(**json.load(sys.stdin)))
    except TpuctlError as error:
        _answer({"error": {"message": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}})
        return int(error.exit_code)
    _answer({"exported": dataclasses.asdict(exported)})
    return 0


def _plan(run: str) -> TrainingPlan:
    record = read_record(run)
    if record is None:
        raise UsageError(f"{run} is no run directory: it has no run.json", hint="name the directory of a training run")
    try:
        plan = plan_from_json(record.plan)
    except PlanFormatError as error:
        raise UsageError(
            f"{run} was written by another version of tpuctl: {error}", hint="export it with that version"
        ) from error
    if not isinstance(plan, TrainingPlan):
        raise UsageError(f"{run} is a run of kind {plan.kind}", hint="only training runs have weights to export")
    return plan


def _told(arrays: CheckpointArrays, path: str) -> np.ndarray:
    values = arrays.read(f"params/{path}")
    sys.stderr.write(f"{path} {list(values.shape)}\n")
    return values


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    sys.exit(main())
