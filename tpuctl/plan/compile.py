"""Ahead-of-time compile of a plan's train step for its TPU slice, in a subprocess, without a TPU.

The control side's half: it starts the cluster side's ``tpuctl.train.aot`` by name and reads its JSON. Imports no jax.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import TpuctlError
from tpuctl.plan.schema import TrainingPlan, plan_dumps

_MODULE = "tpuctl.train.aot"
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}


class CompileError(TpuctlError):
    """The plan's program can't be compiled for its slice, or the compiler is not installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HbmUse:
    """Bytes of one device's memory. ``alias``: outputs that take the room of a donated argument."""

    argument: int
    output: int
    alias: int
    temp: int
    generated_code: int
    peak: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveUse:
    """Collectives of one kind: in the program, run per step, bytes per step, bytes of the largest array."""

    count: int
    runs: int
    nbytes: int
    largest_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """What one device holds and does in one train step. ``kernels``: Pallas kernels by name and how often they run;
    ``largest_arrays``: dtype and dimensions, the largest first."""

    devices: int
    seconds: float
    hbm: HbmUse
    matmul_flops: int
    collectives: dict[str, CollectiveUse]
    kernels: dict[str, int]
    largest_arrays: tuple[tuple[str, tuple[int, ...]], ...]


def compile_plan(plan: TrainingPlan, *, timeout_seconds: float = 1800.0) -> Compiled:
    """Compiles ``plan`` for ``plan.slice``. Takes from seconds to minutes of one core.

    Raises:
        CompileError: libtpu is missing, refuses the slice or the program, or takes too long.
    """
    command = [sys.executable, "-m", _MODULE]
    environment = os.environ | _ENVIRONMENT
    try:
        done = subprocess.run(
            command, input=plan_dumps(plan), capture_output=True, text=True, env=environment, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"the compiler took more than {timeout_seconds:.0f} s") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        hint = "The compiler comes with the `tpu` extra: pip install 'tpuctl[tpu]'." if "libtpu" in last else None
        raise CompileError(f"{plan.slice.generation} {plan.slice.topology} does not compile:\n{last}", hint=hint)
    return _decode(json.loads(done.stdout.splitlines()[-1]))


def _decode(report: dict[str, Any]) -> Compiled:
    return Compiled(
        devices=report["devices"],
        seconds=report["seconds"],
        hbm=HbmUse(**report["hbm"]),
        matmul_flops=report["matmul_flops"],
        collectives={kind: CollectiveUse(**total) for kind, total in report["collectives"].items()},
        kernels=report["kernels"],
        largest_arrays=tuple((shape["dtype"], tuple(shape["dims"])) for shape in report["largest_arrays"]),
    )
