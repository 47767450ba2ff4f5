"""``tpuctl slices``: the table of TPU slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from tpuctl.topology import SliceShape

_COLUMNS = ("ACCELERATOR", "TOPOLOGY", "CHIPS", "HOSTS", "CHIPS/HOST", "MACHINE", "POD TYPE", "DEVICES", "HBM/DEVICE")


def slices(
    generation: Annotated[
        str | None, typer.Argument(help="A TPU generation in any spelling; all if left out.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """List the TPU slices that exist and that Ray can reserve."""
    found = _shapes(generation)
    if output is Output.json:
        console.print_json({"schema": "tpuctl.slices/1", "slices": [_document(shape) for shape in found]})
    else:
        console.table(_COLUMNS, [_row(shape) for shape in found])


def _shapes(name: str | None) -> list[SliceShape]:
    from tpuctl.topology import generations, parse_accelerator, shapes

    chosen = generations() if name is None else (parse_accelerator(name).generation,)
    return [shape for generation in chosen for shape in shapes(generation)]


def _row(shape: SliceShape) -> tuple[object, ...]:
    hbm = f"{shape.generation.hbm_bytes_per_device / 2**30:.2f} GiB"
    return (
        shape.generation.name,
        shape.topology,
        shape.chips,
        shape.hosts,
        shape.chips_per_host,
        shape.machine,
        shape.pod_type,
        shape.devices,
        hbm,
    )


def _document(shape: SliceShape) -> dict[str, Any]:
    return {
        "accelerator": shape.generation.name,
        "topology": shape.topology,
        "chips": shape.chips,
        "hosts": shape.hosts,
        "chips_per_host": shape.chips_per_host,
        "machine": shape.machine,
        "pod_type": shape.pod_type,
        "accelerator_type": shape.accelerator_type,
        "devices": shape.devices,
        "hbm_bytes_per_device": shape.generation.hbm_bytes_per_device,
    }
