"""``tpuctl slices``: the table of TPU slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from tpuctl.topology import AcceleratorName, SliceShape

_COLUMNS = ("ACCELERATOR", "TOPOLOGY", "CHIPS", "HOSTS", "CHIPS/HOST", "MACHINE", "POD TYPE", "DEVICES", "HBM/DEVICE")


def slices(
    generation: Annotated[
        str | None,
        typer.Argument(help="A TPU generation or slice in any spelling; all if left out.", show_default=False),
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

    if name is None:
        return [shape for generation in generations() for shape in shapes(generation)]
    said = parse_accelerator(name)
    return [shape for shape in shapes(said.generation) if _is_meant(shape, said)]


def _is_meant(shape: SliceShape, said: AcceleratorName) -> bool:
    """Whether a shape is what a name says: a size, a topology or a machine narrow the generation down."""
    wanted = [
        (said.chips, shape.chips),
        (said.topology, shape.topology),
        (said.machine and said.machine.name, shape.machine),
    ]
    return all(asked is None or asked == found for asked, found in wanted)


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
