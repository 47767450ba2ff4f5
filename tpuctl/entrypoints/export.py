"""Export: a checkpoint of a run into a model folder of Hugging Face's form, or into a folder of PEFT's.

A process of its own, on one machine.

    python -m tpuctl.entrypoints.export < request.json

Talks on stderr; the last line of stdout is the result, or the error, as JSON. Runs on the CPU whatever the machine
has, and holds one leaf of the parameters at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.export_files import model_config, write_config, write_tokenizer
from tpuctl.entrypoints.export_lora import MergedLeaves, check_beside, write_peft
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.model_folder import open_weights
from tpuctl.nn.weights_writing import WrittenWeights, write_weights
from tpuctl.plan.decode import PlanFormatError
from tpuctl.plan.schema import TrainingPlan, plan_from_json
from tpuctl.runs.record import read_record
from tpuctl.storage import join, open_storage
from tpuctl.train.checkpoint_arrays import CheckpointArrays
from tpuctl.train.provenance import check_model, provenance_of

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to export and where to.

    ``run`` is a run directory, ``step`` None its newest checkpoint; ``format`` is hf or peft. ``beside`` is a model
    folder whose weights must be those that adapters in PEFT's form were trained beside.
    """

    run: str
    step: int | None
    folder: str
    dtype: str
    format: str = "hf"
    beside: str | None = None


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

    Adapters are merged into the weights they were trained beside, unless PEFT's format is asked for.

    Raises:
        UsageError: no such run, a folder that holds something, or PEFT's format asked of a run without adapters.
        CheckpointError: no such checkpoint, it can't be read, or its adapters belong to other weights.
        StorageError: the folder can't be written to.
    """
    plan = _plan(request.run)
    if next(iter(open_storage(request.folder).list(request.folder)), None) is not None:
        raise UsageError(f"{request.folder} is not empty", hint="export into a new folder")
    arrays = CheckpointArrays(join(request.run, "checkpoints"), step=request.step)
    check_model(arrays.written, provenance_of(plan), path=arrays.path)
    family, written = (_adapters if request.format == "peft" else _model)(request, plan, arrays)
    return Exported(
        folder=request.folder,
        run=request.run,
        step=arrays.step,
        family=family,
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


def _model(request: Request, plan: TrainingPlan, arrays: CheckpointArrays) -> tuple[str, WrittenWeights]:
    config = model_config(plan, dtype=request.dtype)
    family = config["model_type"]
    with contextlib.ExitStack() as open_files:
        read = _reading(plan, arrays, open_files)
        written = write_weights(plan.model, request.folder, family=family, dtype=DTYPES[request.dtype], read=read)
    write_tokenizer(plan, request.folder)
    write_config(plan, request.folder, config)
    return family, written


def _adapters(request: Request, plan: TrainingPlan, arrays: CheckpointArrays) -> tuple[str, WrittenWeights]:
    if plan.lora is None or plan.weights is None:
        hint = "leave --format out: the run trained all weights"
        raise UsageError(f"{request.run} has no adapters to write in PEFT's form", hint=hint)
    if request.dtype != "float32":
        raise UsageError("adapters are written as float32", hint="leave --dtype out")
    if request.beside is not None:
        check_beside(open_weights(model_folder(request.beside)), arrays, named=request.beside)
    return plan.weights.family, write_peft(plan, arrays, request.folder)


def _reading(
    plan: TrainingPlan, arrays: CheckpointArrays, open_files: contextlib.ExitStack
) -> Callable[[str], np.ndarray]:
    """What gives a parameter by its path: the checkpoint, or the model folder with the checkpoint's adapters."""
    if plan.lora is None:
        return lambda path: _told(path, arrays.read(f"params/{path}"))
    merged = MergedLeaves(plan, arrays)
    open_files.callback(merged.close)
    return lambda path: _told(path, merged.read(path))


def _told(path: str, values: np.ndarray) -> np.ndarray:
    sys.stderr.write(f"{path} {list(values.shape)}\n")
    return values


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    sys.exit(main())
