"""TPU slices: one offline table, and the names and arithmetic on it.

``resolve_slice`` turns what people write (``v6e-16``, ``tpu-v5-lite-podslice`` with ``4x4``) into one exact shape.
Standard library only; the table is read on first use, so importing this costs nothing.
"""

from tpuctl.topology.names import AcceleratorName, parse_accelerator
from tpuctl.topology.slices import Resolution, SliceShape, resolve_slice, shapes
from tpuctl.topology.table import Generation, Machine, generation, generations

__all__ = [
    "AcceleratorName",
    "Generation",
    "Machine",
    "Resolution",
    "SliceShape",
    "generation",
    "generations",
    "parse_accelerator",
    "resolve_slice",
    "shapes",
]
