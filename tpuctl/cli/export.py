"""``tpuctl export``: a checkpoint as a model folder that other programs load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption, QuietOption
from tpuctl.cli.place import given, place
from tpuctl.errors import ExitCode, TpuctlError

_MODULE = "tpuctl.entrypoints.export"
_STEP = re.compile(r"(?P<run>.+)@(?P<step>\d+)")


class Format(StrEnum):
    """What can be written."""

    hf = "hf"
    peft = "peft"


class Dtype(StrEnum):
    """The dtypes of exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="A run directory, local or gs://; its newest checkpoint, or that of a step.",
            parser=given,
        ),
    ],
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Where to, local or gs://; a new or empty folder.", parser=given),
    ],
    *,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="hf is a model, adapters merged into it; peft a run's adapters alone.",
        ),
    ] = Format.hf,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="Of the weights; float32 is what checkpoints hold.")
    ] = Dtype.float32,
    output: OutputOption = Output.text,
    quiet: QuietOption = False,
) -> None:
    """Write a run's weights in Hugging Face's form, or its adapters in PEFT's, on this machine, with no cluster."""
    found = _STEP.fullmatch(run)
    request = {
        "run": place(found["run"] if found else run),
        "step": int(found["step"]) if found else None,
        "folder": place(folder),
        "dtype": dtype.value,
        "format": format_.value,
    }
    exported = _exported(request, show=output is Output.text and not quiet)
    if output is Output.json:
        console.print_json({"schema": "tpuctl.export/1", "format": format_.value, **exported})
        return
    console.out(exported["folder"])
    if quiet:
        return
    size = f"{exported['num_bytes'] / 1e9:.2f} GB"
    files = console.counted(len(exported["files"]), "file")
    what = f"{console.counted(exported['tensors'], 'tensor')}, {size} of {exported['dtype']} in {files}"
    console.say(f"step {exported['step']} of {exported['run']}: {what}")


def _exported(request: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """What the exporting process answers: this one imports no jax.

    Raises:
        TpuctlError: as it says, or it died without a word.
    """
    done = subprocess.run(
        [sys.executable, "-m", _MODULE],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        stderr=None if show else subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    lines = done.stdout.splitlines()
    if not lines:
        said = (done.stderr or "").strip().splitlines()[-1:]
        raise TpuctlError("; ".join([f"the export ended with code {done.returncode} and no result", *said]))
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        error = TpuctlError(answer["error"]["message"], hint=answer["error"]["hint"])
        error.exit_code = ExitCode(answer["error"]["exit_code"])
        raise error
    exported: dict[str, Any] = answer["exported"]
    return exported
